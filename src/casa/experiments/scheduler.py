"""Runs many jobs, a few at a time. Where a job runs is a `Place`; here, processes of this machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from casa.experiments.child import LOST, Process
from casa.experiments.state import State, last_row, prepare, state_of
from casa.experiments.studies import Planned
from casa.runtime.machine import cores

POLL = 0.2
PATIENCE = 60.0
"""Seconds in which a job must save and exit."""
HELD = 120.0
"""Seconds to wait for a run directory that another process holds, when nothing else is left to do. A file server frees
the locks of a machine that is gone after 90 s or so."""
LOG = "output.log"
LOSSES = 5
"""A run that is lost so many times at the same step has failed."""


class Running(Protocol):
    """A job under way."""

    def poll(self) -> int | None:
        """The exit status, None while it runs, LOST if nobody knows."""

    def stop(self) -> None:
        """Ask it to save and exit."""

    def kill(self) -> None:
        """End it at once."""


class Place(Protocol):
    """Where jobs run: this machine, or a cluster that sees the same directories."""

    scratch: Path | None
    """Where to put the directories of short trials; None: with this machine's temporary files."""

    @property
    def slots(self) -> int:
        """How many jobs at a time; it may change."""

    def start(self, args: Sequence[str], log: Path) -> Running:
        """Start `casa ARGS`, with its output appended to `log`."""


class LocalPlace:
    """Processes of this machine, each with an equal share of its cores."""

    scratch: Path | None = None

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._environment = {"OMP_NUM_THREADS": str(max(cores() // slots, 1))}

    def start(self, args: Sequence[str], log: Path) -> Running:
        """Start a process that is stopped if this one dies."""
        return Process(args, log, self._environment)


@dataclass
class Progress:
    """What the scheduler has done so far; the display reads it."""

    waiting: list[Planned]
    finished: list[Planned] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Name of a run -> why it failed."""
    running: dict[str, Planned] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Name of a run that finished here -> how long it took."""
    began: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> int:
        """All runs."""
        return len(self.waiting) + len(self.finished) + len(self.failed) + len(self.running)


class Scheduler:
    """Runs every planned run that is not finished: new ones are trained, unfinished ones resumed.

    A failure is kept and the rest goes on. `limit` seconds after the start, running jobs save and stop.
    """

    def __init__(self, runs: Sequence[Planned], place: Place, limit: float | None = None) -> None:
        self.progress = Progress([])
        for run in runs:
            done = self.state(run) is State.FINISHED
            (self.progress.finished if done else self.progress.waiting).append(run)
        self.place, self.limit = place, limit
        self._jobs: dict[str, tuple[Planned, Running, float]] = {}
        self._held_since: float | None = None
        self._losses: Counter[tuple[str, int]] = Counter()

    def state(self, run: Planned) -> State:
        """What has to be done with a run."""
        return state_of(run.path, run.config.steps)

    def command(self, run: Planned, state: State) -> list[str]:
        """The arguments of `casa` for the next job of a run that is NEW or UNFINISHED."""
        path = run.path.absolute()
        if state is State.NEW:
            prepare(path, dict(run.settings))
            return ["train", "--config", str(path / "settings.yaml"), "--run-dir", str(path)]
        return ["resume", str(path), *trust(run)]

    def again(self, run: Planned, status: int) -> bool:
        """Whether a run whose job has ended, but which is not finished, is tried again: if its machine was lost."""
        if status != LOST:
            return False
        at = run.name, last_row(run.path).get("step", 0)
        self._losses[at] += 1
        return self._losses[at] < LOSSES

    def go(self, show: Callable[[Progress], None]) -> Progress:
        """Run all; on an interrupt or past the limit let the running jobs save, then stop."""
        progress = self.progress
        try:
            while progress.waiting or self._jobs:
                if self.limit is not None and time.monotonic() - progress.began > self.limit:
                    self.stop()
                    break
                self._fill()
                self._reap()
                show(progress)
                time.sleep(POLL)
        except BaseException:
            self.stop()
            raise
        show(progress)
        return progress

    def stop(self) -> None:
        """Let all running jobs save and exit; those that take longer than a minute are killed."""
        for _, job, _ in self._jobs.values():
            job.stop()
        deadline = time.monotonic() + PATIENCE
        while any(job.poll() is None for _, job, _ in self._jobs.values()) and time.monotonic() < deadline:
            time.sleep(POLL)
        for _, job, _ in self._jobs.values():
            job.kill()
        for run, _, _ in self._jobs.values():
            done = self.state(run) is State.FINISHED
            (self.progress.finished if done else self.progress.waiting).append(run)
        self._jobs.clear()
        self.progress.running.clear()

    def _fill(self) -> None:
        """Start as many jobs as there are free slots; a run that another process holds is tried again later."""
        progress = self.progress
        for run in list(progress.waiting):
            if len(self._jobs) >= self.place.slots:
                return
            state = self.state(run)
            if state is State.BUSY:
                continue
            progress.waiting.remove(run)
            self._held_since = None
            if state is State.FINISHED:
                progress.finished.append(run)
                continue
            args = self.command(run, state)
            self._jobs[run.name] = run, self.place.start(args, run.path / LOG), time.monotonic()
            progress.running[run.name] = run
        if progress.waiting and not self._jobs:
            self._held_since = self._held_since or time.monotonic()
            if time.monotonic() - self._held_since > HELD:
                for run in progress.waiting:
                    progress.failed[run.name] = f"another process trains in {run.path}"
                progress.waiting.clear()

    def _reap(self) -> None:
        progress = self.progress
        for name, (run, job, began) in list(self._jobs.items()):
            status = job.poll()
            if status is None:
                continue
            del self._jobs[name], progress.running[name]
            if self.state(run) is State.FINISHED:
                progress.finished.append(run)
                progress.seconds[name] = time.monotonic() - began
            elif self.again(run, status):
                progress.waiting.insert(0, run)
            else:
                what = "its machine was lost" if status == LOST else f"exit status {status}"
                progress.failed[name] = f"{what}: {_last_line(run.path / LOG)}"


def trust(run: Planned) -> list[str]:
    """The flag that lets a job import the modules that its run names."""
    return ["--trust"] if ":" in run.env or run.config.plugins else []


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "no output"
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def share(run: Planned) -> float:
    """How much of a run is done, 0 to 1."""
    return min(last_row(run.path).get("step", 0) / run.config.steps, 1.0)
