"""A run directory has one owner, survives its death, and refuses to mix two runs."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from casa.errors import UserError
from casa.run.jsonl import read_jsonl
from casa.run.rundir import RunDir

HOLDER = """
    import os, sys, time
    from pathlib import Path
    from casa.run.rundir import RunDir
    with RunDir.create(Path(sys.argv[1])) as run:
        run.write_config("a: 1")
        run.metrics.write({"step": 1})
        if sys.argv[2] == "fork" and os.fork() == 0:
            print(os.getpid(), flush=True)  # by the worker, when it runs: only then has it let go of the lock
            time.sleep(60)
            os._exit(0)
        if sys.argv[2] == "alone":
            print("held", flush=True)
        sys.stdin.readline()
"""


@contextmanager
def holder(run: Path, mode: str = "alone") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that owns `run` until it is told or killed, and the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(run), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_create_write_resume(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x"
    with RunDir.create(path) as run:
        run.write_config("name: é\n")
        for step in (1, 2, 3):
            run.metrics.write({"step": step})
            run.episodes.write({"step": step, "return": float("nan")})
        run.sync()
        assert run.notes == []
        names = ["config.yaml", "episodes.jsonl", "metrics.jsonl"]
        assert run.written() == [str(path / name) for name in names]
    with RunDir.open(path) as run:
        assert run.read_config() == "name: é\n"
        assert run.notes == []
        assert run.drop_after(2) == 2
        run.metrics.write({"step": 5})
    assert [r["step"] for r in read_jsonl(path / "metrics.jsonl")] == [1, 2, 5]
    assert list(read_jsonl(path / "episodes.jsonl")) == [{"step": s, "return": None} for s in (1, 2)]


def test_second_process_is_refused_by_pid(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        for take in (RunDir.create, RunDir.open):
            with pytest.raises(UserError, match=rf"in use by process {process.pid} on \S+ since 20.*another --run-dir"):
                take(tmp_path).__enter__()
        process.communicate("done\n")
        assert process.returncode == 0
        with RunDir.open(tmp_path) as run:
            assert run.notes == [], "it ended well"


def test_killed_holder_is_recovered(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
        with open(tmp_path / "metrics.jsonl", "ab") as log:
            log.write(b'{"step": 2, "torn')
        with RunDir.open(tmp_path) as run:
            assert len(run.notes) == 2
            assert f"process {process.pid}, which was killed" in run.notes[0]
            assert "metrics.jsonl: the last line was torn by a crash, its 17 bytes" in run.notes[1]
            run.metrics.write({"step": 3})
        assert [r["step"] for r in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 3]
        with RunDir.open(tmp_path) as run:
            assert run.notes == []


def test_surviving_worker_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A forked environment worker that outlives a killed training has let go of the directory."""
    with holder(tmp_path, "fork") as (process, child):
        worker = int(child)
        try:
            with pytest.raises(UserError, match="in use by"):
                RunDir.open(tmp_path).__enter__()
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.kill(worker, 0)  # it is alive
            with RunDir.open(tmp_path) as run:
                assert f"process {process.pid}" in run.notes[0]
        finally:
            os.kill(worker, signal.SIGKILL)


def test_twice_in_one_process(tmp_path: Path) -> None:
    with RunDir.create(tmp_path):
        with pytest.raises(UserError, match=f"process {os.getpid()} "):
            RunDir.create(tmp_path).__enter__()
        with pytest.raises(UserError, match="in use"):  # the refused one has not freed it
            RunDir.create(tmp_path).__enter__()


def test_released_after_an_error_inside(tmp_path: Path) -> None:
    def interrupted() -> None:
        with RunDir.create(tmp_path) as run:
            run.write_config("a: 1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with RunDir.open(tmp_path) as run:
        assert run.notes == []


def test_unreadable_lock_still_refuses(tmp_path: Path) -> None:
    with RunDir.create(tmp_path):
        for text in ("", "[]", "{"):
            (tmp_path / ".lock").write_text(text)
            with pytest.raises(UserError, match="in use by process unknown"):
                RunDir.create(tmp_path).__enter__()


@pytest.mark.parametrize("made", ["config.yaml", "metrics.jsonl", "episodes.jsonl", "checkpoints/step-000000000001"])
def test_new_run_does_not_mix_with_an_old_one(tmp_path: Path, made: str) -> None:
    (tmp_path / made).parent.mkdir(exist_ok=True)
    if made.startswith("checkpoints"):
        (tmp_path / made).mkdir()
        expected = f"already holds a run; continue it with `casa resume {tmp_path}` or choose another --run-dir"
    else:
        (tmp_path / made).write_text("x\n")
        expected = "stopped before its first checkpoint; delete the directory or choose another --run-dir"
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):  # the refusal frees the directory
        with pytest.raises(UserError, match=re.escape(expected)):
            RunDir.create(tmp_path).__enter__()
    assert [p for p in sorted(tmp_path.rglob("*")) if p.name != ".lock"] == before


def test_started_and_left_empty_is_no_run(tmp_path: Path) -> None:
    with RunDir.create(tmp_path):
        pass
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with RunDir.create(tmp_path) as run:
        run.metrics.write({"step": 1})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_nothing_to_resume(tmp_path: Path) -> None:
    (tmp_path / "breakout-1").mkdir()
    with pytest.raises(UserError, match=r"does not exist; did you mean .*/breakout-1\?"):
        RunDir.open(tmp_path / "breakuot-1").__enter__()
    assert not (tmp_path / "breakuot-1").exists()
    with pytest.raises(UserError, match=r"breakout-1 holds no run to resume: it has no config\.yaml"):
        RunDir.open(tmp_path / "breakout-1").__enter__()


def test_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"cannot use .* as run directory"):
            RunDir.create(path).__enter__()


def test_config_is_replaced_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunDir.create(tmp_path) as run:
        run.write_config("old")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UserError, match=r"cannot write .*config\.yaml: No space left"):
                run.write_config("new")
        assert run.read_config() == "old"
        run.write_config("newer")
        assert run.read_config() == "newer"
        assert sorted(os.listdir(tmp_path)) == [".lock", "config.yaml", "episodes.jsonl", "metrics.jsonl"]
        run.config.write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match=r"cannot read .*config\.yaml"):
            run.read_config()
