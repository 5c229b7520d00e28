"""A run in a process of its own: interrupted, terminated, killed, resumed, and started twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from tests.support.runs import is_due, rows

from casa import cli
from casa.envs.types import Abandoned
from casa.run import checkpoint
from casa.run.interrupt import TWICE, Interrupt

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "--recipe": "casa",
    "--preset": "laptop",
    "--mode": "sync",
    "--env": "tests.support.tiny_envs:Slow",
    "--env.num-envs": "4",
    "--env.vectorization": "sync",
    "--net.hidden": "16",
    "--data.seq-len": "5",
    "--data.batch": "4",
    "--log.tensorboard": "no",
    "--log.every-steps": "40",
    "--checkpoint.every-steps": "400",
    "--steps": "1_000_000",
    "--device": "cpu",
}


@pytest.fixture(autouse=True)
def terminal():
    """SIGHUP as a terminal leaves it: whoever runs the tests under nohup ignores it, and children inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def words(settings):
    return [word for pair in settings.items() for word in pair]


@contextmanager
def casa(*argv):
    """`python -m casa ARGV` in the background; killed at the end if it still runs."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "casa", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(run, step, process, seconds=60):
    """Until the run has reported a step beyond `step`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        log = run / "metrics.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        if lines and json.loads(lines[-1])["step"] > step:
            return
        time.sleep(0.05)
    pytest.fail(f"no step beyond {step} within {seconds} seconds")


def leave(process, number):
    """(exit status, standard output, seconds) after a signal; nothing may be on standard error."""
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert err == ""
    return process.returncode, " ".join(out.split()), time.monotonic() - began


def assert_saved_and_left(run, process, number):
    status, out, seconds = leave(process, number)
    assert seconds < 10
    assert status == 128 + number  # not 0: `casa train && casa eval` must not go on with an unfinished run
    step = checkpoint.load(run).step
    assert "stopping: saving first; once more to leave at once" in out
    assert f"saved at {step:,} steps; continue with: casa resume {run} --trust" in out
    assert rows(run)[-1]["step"] == step
    # No episode is counted and not written.
    episodes = (run / "episodes.jsonl").read_text().splitlines()
    assert len(episodes) == checkpoint.load(run).meta["system"]["episodes"] > 0
    return step


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_interrupted_terminated_killed_and_resumed(mode, tmp_path, capsys):
    run = tmp_path / "run"
    settings = {**SETTINGS, "--mode": mode}
    with casa("train", *words(settings), "--run-dir", str(run)) as process:
        wait_for(run, 0, process)
        # Two processes on one directory.
        for argv in (["train", *words(settings), "--run-dir", str(run)], ["resume", str(run), "--trust"]):
            assert cli.main(argv) == 2
            assert f"{run} is in use by process {process.pid} on " in capsys.readouterr().err
        stopped = assert_saved_and_left(run, process, signal.SIGINT)
    assert stopped >= 40

    assert cli.main(["train", *words(settings), "--run-dir", str(run)]) == 2
    assert f"already holds a run; continue it with `casa resume {run}`" in capsys.readouterr().err

    with casa("resume", str(run), "--trust") as process:
        wait_for(run, stopped, process)
        again = assert_saved_and_left(run, process, signal.SIGHUP if mode == "async" else signal.SIGTERM)
    assert again > stopped

    with casa("resume", str(run), "--trust") as process:
        wait_for(run, again + 500, process)  # beyond a checkpoint
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate()
        assert f"resumed at {again:,} steps" in " ".join(out.split())
    kept = checkpoint.load(run).step
    assert (mode == "async" or kept % 400 < 4) and kept > again  # the first step of four environments beyond 400
    assert rows(run)[-1]["step"] > kept

    assert cli.main(["resume", str(run), "--trust", "--steps", str(kept + 200)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"was left by process {process.pid}, which was killed" in out
    assert f"resumed at {kept:,} steps" in out
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(steps) and is_due(steps[-1], kept + 200, 4) and steps[-1] == checkpoint.load(run).step
    assert len({row["step"] for row in rows(run)}) >= len(steps) - 2  # at most one more row where it was stopped
    episodes = [row["step"] for row in rows(run, "episodes.jsonl")]
    assert episodes == sorted(episodes)


@pytest.mark.slow
def test_the_second_signal_leaves_at_once(tmp_path):
    """The environment holds its step for a long time, so the first signal has to wait."""
    run = tmp_path / "run"
    slow = {**SETTINGS, "--env.kwargs": "{seconds: 5}", "--log.every-steps": "1"}
    with casa("train", *words(slow), "--run-dir", str(run)) as process:
        end = time.monotonic() + 60
        while not list((run / "checkpoints").glob("step-*")) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)  # in the first step
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        status, out, seconds = leave(process, signal.SIGINT)
    assert status == 128 + signal.SIGINT
    assert seconds < 2
    assert "once more to leave at once" in out
    assert checkpoint.load(run).step == 0  # the one from the beginning


def test_a_signal_in_the_middle_of_a_print_is_not_lost():
    def note(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with Interrupt(note) as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_terminal_that_is_closed_may_say_so_twice_and_nohup_is_respected():
    with Interrupt(print) as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(TWICE + 0.1)
        os.kill(os.getpid(), signal.SIGHUP)  # a second SIGINT would end this process
        assert interrupt.requested and interrupt.number == signal.SIGHUP and interrupt.waited > TWICE
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt(print) as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("inside", [True, False])
def test_the_main_thread_leaves_an_environment_that_hangs_but_nothing_else(inside):
    with Interrupt(lambda text: None, blocked=lambda: inside) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.2, interrupt.leave_environment).start()
        began = time.monotonic()
        with pytest.raises(Abandoned) if inside else nullcontext():
            time.sleep(1)
    assert (time.monotonic() - began < 0.9) == inside


def test_a_signal_that_is_passed_on_twice_is_one():
    """`timeout -s INT casa train ...` signals the process and then its group."""
    code = """
import os, signal, time
from casa.run import interrupt
with interrupt.Interrupt(print):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
    print("still here", flush=True)
    time.sleep(interrupt.TWICE + 0.05)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["stopping: saving first; once more to leave at once", "still here"]
    assert done.returncode == 128 + signal.SIGINT and done.stderr == ""


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--learner.lrr", "1e-4"], "unknown flag --learner.lrr; did you mean --learner.lr?"),
        (["--recipe", "ppo-cas"], "recipe 'ppo-cas' is unknown; did you mean 'ppo-casa'?"),
        (["--env", "Breakot"], "did you mean"),
        (["--env", "CartPol-v1"], "did you mean 'CartPole-v1'?"),
        (["--learner.lr", "-1"], "learner.lr must be > 0, got -1"),
        (["--data.seq-len", "many"], "--data.seq-len"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_nearest_name_and_leaves_nothing(argv, sentence, tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["train", "--preset", "laptop", "--run-dir", str(run), *argv]) == 2
    seen = capsys.readouterr().err
    assert sentence in seen and seen.count("\n") == 1
    # The corrected command may use the same directory.
    config = {**SETTINGS, "--env": "CartPole-v1", "--steps": "100", "--run-dir": str(run)}
    if "--env" in argv:
        assert cli.main(["train", *words(config)]) == 0
        assert is_due(checkpoint.load(run).step, 100, 4)


def test_a_misspelt_field_in_a_file(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("learner:\n  lrr: 1.0e-4\n")
    assert cli.main(["train", "--config", str(tmp_path / "config.yaml"), "--run-dir", str(tmp_path / "run")]) == 2
    assert "field 'learner.lrr' is unknown; did you mean 'learner.lr'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
