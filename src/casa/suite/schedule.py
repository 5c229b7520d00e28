"""Trains, evaluates and retries the runs of a suite. The run directories alone say what is left to do."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casa.errors import UserError
from casa.experiments.child import LOST
from casa.experiments.scheduler import Place, Scheduler, trust
from casa.experiments.state import State
from casa.experiments.studies import Planned
from casa.suite.spec import Evaluation

EVALUATION = "eval-suite.json"
USER_ERROR = 2
"""Exit status of a mistake and of a fault of the environment or the machine, each said in one sentence."""


class SuiteScheduler(Scheduler):
    """Trains each run, then evaluates it; a job that fails is tried again, `retries` times in all for each run."""

    def __init__(
        self,
        runs: Sequence[Planned],
        place: Place,
        evaluation: Evaluation,
        retries: int = 2,
        limit: float | None = None,
    ) -> None:
        self.evaluation, self.retries = evaluation, retries
        self._failures: Counter[str] = Counter()
        self._evaluating: set[str] = set()
        super().__init__(runs, place, limit)

    def state(self, run: Planned) -> State:
        """FINISHED if it is evaluated too; a run of which only the logs were kept cannot be."""
        found = super().state(run)
        if found is State.FINISHED and evaluation_of(run, self.evaluation) is None and _saved_steps(run):
            return State.UNFINISHED
        return found

    def command(self, run: Planned, state: State) -> list[str]:
        """`casa eval` once the last checkpoint is there."""
        if state is State.NEW or not _trained(run):
            return super().command(run, state)
        self._evaluating.add(run.name)
        asked, path = self.evaluation, run.path.absolute()
        flags = ["--episodes", str(asked.episodes), "--policy", asked.policy, "--checkpoint", asked.checkpoint]
        flags += ["--device", run.config.device, "--json", str(path / EVALUATION)]
        return ["eval", str(path), *flags, *trust(run)]

    def again(self, run: Planned, status: int) -> bool:
        """A trained run is evaluated next; a failure is tried again, unless it came before the first step."""
        if status == LOST:
            return super().again(run, status)
        if status == 0 and _trained(run) and run.name not in self._evaluating:
            return True
        self._failures[run.name] += 1
        mistaken = status == USER_ERROR and not any(_saved_steps(run))
        return not mistaken and self._failures[run.name] <= self.retries


def evaluation_of(run: Planned, asked: Evaluation) -> dict[str, Any] | None:
    """What `casa eval` wrote for a run, if it is what is asked for."""
    try:
        found: dict[str, Any] = json.loads((run.path / EVALUATION).read_text(encoding="utf-8"))
        last = asked.checkpoint == "best" or found["step"] >= run.config.steps
        fits = found["episodes"] == asked.episodes and asked.policy in found["modes"] and last
        return found if fits else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _trained(run: Planned) -> bool:
    """Whether the last checkpoint is written. The log ends before that: after a kill in between, the run is resumed."""
    return any(step >= run.config.steps for step in _saved_steps(run))


def _saved_steps(run: Planned) -> list[int]:
    return [int(folder.name.split("-")[1]) for folder in (run.path / "checkpoints").glob("step-*")]


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the directory; UserError if another `casa suite` does. A killed process holds nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another casa suite runs in {directory}; wait for it, or choose another --dir") from None
        yield
    finally:
        os.close(descriptor)
