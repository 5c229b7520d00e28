"""Tests 8 and 10: signals, pipes and exit statuses; and environments that go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from fault_tests.lab import TRACEBACK, Lab, check_logs, end_of, newest, rows, train, wait_until

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signals(lab: Lab) -> None:
    """A signal to a run or its group saves everything; the status is 128 + signal. Lost output ends no run."""
    cases = [(number, vectorization) for number in STOPPING for vectorization in ("sync", "async")]
    for number, vectorization in lab.rng.sample(cases, 1 if lab.quick else 4):
        group = lab.rng.random() < 0.7
        run = lab.new("run")
        mode = lab.rng.choice(["sync", "async"])
        with lab.start(*train(run, env__vectorization=vectorization, mode=mode)) as process:
            wait_until(lambda run=run: bool(rows(run)), process)
            time.sleep(lab.rng.uniform(0, 1))
            before = rows(run)[-1]["step"]
            (os.killpg if group else os.kill)(process.pid, number)
            out, err = end_of(process)
        name = f"{signal.Signals(number).name}, {vectorization}, {mode}"
        lab.fact(name)
        assert process.returncode == 128 + number, f"{name}: status {process.returncode}: {err[-300:]}"
        assert not err and f"casa resume {run}" in out, f"{name}: {err[-300:]}"
        assert newest(run) >= before, f"{name}: saved {newest(run)} of {before}"
        check_logs(run)
    outputs(lab)


def outputs(lab: Lab) -> None:
    """A reader that leaves, a closed standard output and a full one: the run goes on, and its status is 0."""
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full:
        for name, stdout in {"broken pipe": write, "full": full, "closed": None}.items():
            if lab.quick and name != "broken pipe":
                continue
            run = lab.new("run")
            done = lab.casa(*train(run, 800, log__every_seconds=0.01), stdout=stdout, close_stdout=stdout is None)
            assert done.status == 0 and newest(run) >= 800, f"{name}: {done.status}: {done.err[-300:]}"
            assert TRACEBACK not in done.err, f"{name}: {done.err[-300:]}"
            assert done.err.count("\n") == (name != "closed"), f"{name}: {done.err[-300:]}"
    os.close(write)
    done = lab.casa("recipes", stdout=open("/dev/full", "w"))  # noqa: SIM115 (ends with this process)
    assert done.status == 1 and TRACEBACK not in done.err and done.err.count("\n") == 1


def environments(lab: Lab) -> None:
    """Environments that exit, raise, die, hang or cannot be closed: one sentence, and everything is saved."""
    sentences = {
        ("exit", "sync"): "step raised SystemExit",
        ("exit", "async"): "step raised SystemExit",
        ("raise", "async"): "step raised ValueError: the bridge is out",
        ("die", "async"): "its process died with exit code 3",
        ("killed", "async"): "its process was killed by SIGKILL",
    }
    chosen = lab.rng.sample(list(sentences), 1 if lab.quick else 3)
    for how, vectorization in chosen:
        run = lab.new("run")
        done = lab.refused(*bad(run, how, vectorization, mode=lab.rng.choice(["sync", "async"])))
        name = f"{how}, {vectorization}"
        lab.fact(name)
        assert "environment" in done.err and sentences[how, vectorization] in done.err, f"{name}: {done.err[-300:]}"
        assert len(done.err.splitlines()) == 1, f"{name}: {done.err[-500:]}"
        assert newest(run) >= 4 * 190, f"{name}: only {newest(run)} steps are saved"
    if lab.quick:
        return
    run = lab.new("run")
    done = lab.casa(*bad(run, "close", lab.rng.choice(["sync", "async"]), steps=400))
    assert done.status == 0 and TRACEBACK not in done.err, done.err[-300:]
    hanging(lab, lab.rng.choice(["sync", "async"]))


def bad(run, how: str, vectorization: str, steps: int = 100_000, **changes: object) -> list[str]:
    kwargs = f"{{how: {how}}}"
    return train(run, steps, env="bad_envs:Bad", env__kwargs=kwargs, env__vectorization=vectorization, **changes)


def hanging(lab: Lab, vectorization: str) -> None:
    """An environment that hangs is named after 30 s; Ctrl-C saves without waiting for it."""
    run, mode = lab.new("run"), lab.rng.choice(["sync", "async"])
    log = lab.home / "out"
    with open(log, "w") as out, lab.start(*bad(run, "hang", vectorization, mode=mode), stdout=out) as process:
        wait_until(lambda: "has not answered for 30 s" in log.read_text(), process, seconds=90)
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{vectorization}, {mode}: Ctrl-C waited for the environment") from None
    assert process.returncode == 130, f"{vectorization}, {mode}: {process.returncode}"
    assert newest(run) >= 4 * 190, f"only {newest(run)} steps are saved"
    lab.fact(f"hang: {vectorization}, {mode}")
