"""Real processes for the fault campaign: start, signal, kill, wait; and what they leave on the disk."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casa.run import checkpoint

ROOT = Path(__file__).parents[2]
SMALL = {
    "--recipe": "casa",
    "--env": "CartPole-v1",
    "--env.num-envs": "4",
    "--env.vectorization": "sync",
    "--net.hidden": "16",
    "--data.seq-len": "5",
    "--data.batch": "4",
    "--device": "cpu",
    "--log.tensorboard": "no",
    "--log.every-steps": "200",
    "--checkpoint.every-steps": "400",
}
TRACEBACK = "Traceback (most recent call last)"


@dataclass
class Done:
    """A process that has ended."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return " ".join((self.out + " " + self.err).split())


@dataclass
class Lab:
    """One test of one seed: a directory of its own, random numbers, and the facts that it found."""

    home: Path
    rng: random.Random
    quick: bool = False
    facts: list[str] = field(default_factory=list)
    given: int = 0

    def fact(self, text: str) -> None:
        self.facts.append(text)

    def new(self, name: str) -> Path:
        """A path that does not exist and was not given out before."""
        self.given += 1
        return self.home / f"{name}-{self.given}"

    @contextmanager
    def start(
        self, *argv: object, gib: float = 0, close_stdout: bool = False, **options: Any
    ) -> Iterator[subprocess.Popen[str]]:
        """`casa ARGV` in the background, in a process group of its own; the group is killed at the end.

        `gib` limits its address space.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{Path(__file__).parent}"}
        environment["PYTHONFAULTHANDLER"] = "1"

        def prepare() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # ignored if this program runs under nohup
                signal.signal(number, signal.SIG_DFL)
            if close_stdout:
                os.close(1)
            if gib:
                resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)

        process = subprocess.Popen(
            [sys.executable, "-m", "casa", *map(str, argv)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
            text=True,
            env=environment,
            cwd=self.home,
            start_new_session=True,
            preexec_fn=prepare,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def casa(self, *argv: object, seconds: float = 90, gib: float = 0, **options: Any) -> Done:
        """`casa ARGV` to its end; AssertionError if it takes longer than `seconds`."""
        began = time.monotonic()
        with self.start(*argv, gib=gib, **options) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"casa {' '.join(map(str, argv))} hung for {seconds:g} s") from None
            return Done(process.returncode, out or "", err or "", time.monotonic() - began)

    def refused(self, *argv: object, **options: Any) -> Done:
        """`casa ARGV` must end with status 2 and one printable sentence."""
        done = self.casa(*argv, **options)
        lines = done.err.strip().splitlines()
        assert done.status == 2, f"casa {argv} ended with {done.status}: {done.err[-300:]}"
        assert lines and lines[-1].startswith("casa: ") and TRACEBACK not in done.err, done.err[-500:]
        assert all(line.isprintable() for line in lines), repr(done.err[-300:])
        return done


def train(run: Path, steps: int = 1_000_000, **changes: object) -> list[str]:
    """The words of `casa train` for a small run; `changes` are fields with __ for the dot and _ for the dash."""
    given = {f"--{name.replace('__', '.').replace('_', '-')}": str(value) for name, value in changes.items()}
    flags = {**SMALL, "--run-dir": str(run), "--steps": str(steps), **given}
    return ["train", *(word for pair in flags.items() for word in pair)]


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The records of a log; an incomplete last line is left out."""
    with suppress(FileNotFoundError):
        lines = (run / name).read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]
    return []


def steps_of(run: Path) -> int:
    found = rows(run)
    return int(found[-1]["step"]) if found else 0


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    """Until `condition` holds; AssertionError if the process ends or the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}: {process.communicate()[1][-300:]}")
        assert time.monotonic() < end, f"not reached within {seconds:g} s"
        time.sleep(0.01)


def end_of(process: subprocess.Popen[str], seconds: float = 60) -> tuple[str, str]:
    """(output, errors) of a process that must end by itself; otherwise an AssertionError says where it hangs."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler prints every thread
        out, err = process.communicate()
        raise AssertionError(f"hung for {seconds:g} s after {out[-200:]!r}: {err[-1500:]}") from None


def holder(run: Path) -> int:
    """The process that has locked a run, or had when it was killed; 0: none."""
    with suppress(OSError, ValueError):
        return int(json.loads((run / ".lock").read_text())["pid"])
    return 0


def newest(run: Path) -> int:
    """The step of the newest complete checkpoint, found as a reader would: all checksums are verified."""
    try:
        return checkpoint.load(run, on_damage=lambda text: None).step
    except Exception:
        return -1


def check_logs(run: Path) -> None:
    """The steps of both logs increase, and no episode is written twice."""
    steps = [row["step"] for row in rows(run)]
    assert steps == sorted(set(steps)), f"rows of metrics out of order or twice: {steps}"
    episodes = [(row["step"], row["env"]) for row in rows(run, "episodes.jsonl")]
    assert len(episodes) == len(set(episodes)) and [e[0] for e in episodes] == sorted(e[0] for e in episodes)


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
