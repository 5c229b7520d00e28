"""What happens beside learning. Logs, display and checkpoints are callbacks; so is what a user adds.

    class Best(casa.Callback):
        def on_report(self, training, row):
            if row["return"] is not None and row["return"] > 475:
                training.stop("solved")

    casa.train(recipe="casa", env="CartPole-v1", callbacks=[Best()])
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casa import tables
from casa.rollout.actor import Episode
from casa.run.display import Display
from casa.run.views import Views

if TYPE_CHECKING:
    from casa.run.training import Training


class Callback:
    """Override what you need. Every method runs in the learner's thread, between two learner steps.

    `training` is the run under way: `config`, `path`, `steps`, `row` (the newest report), `system` (networks,
    environments, data) and `stop(reason)`, which ends the run as if its steps were over, with a checkpoint.
    """

    def on_start(self, training: Training) -> None:
        """All parts are built, and a resumed run has its state back; no step has been taken yet."""

    def on_update(self, training: Training, scalars: dict[str, float]) -> None:
        """A learner step was taken; `scalars` are its losses, norms and diagnostics (empty where it was skipped)."""

    def on_episode(self, training: Training, episode: Episode) -> None:
        """An episode ended: `env`, `score` (the raw return), `length`."""

    def on_progress(self, training: Training) -> None:
        """The loop gave a sign of life: after every step of the environments (sync) or learner step (async)."""

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """A row of metrics is complete, every `log.every_steps` agent steps."""

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """A checkpoint is on the disk."""

    def on_end(self, training: Training) -> None:
        """The run is over, after its last checkpoint; not called where an error ended it."""


class Logs(Callback):
    """metrics.jsonl, episodes.jsonl, TensorBoard and Weights & Biases."""

    def __init__(self, views: Views) -> None:
        self.views = views

    def on_episode(self, training: Training, episode: Episode) -> None:
        """One record."""
        training.directory.episodes.write({"step": training.steps, **episode._asdict()})

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """One record, and the same for each view."""
        training.directory.metrics.write(row)
        self.views.write(row)


class Screen(Callback):
    """The live display, or plain lines where the output is piped."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.every = 1.0 if display.console.is_terminal else display.every
        self.shown = time.perf_counter()

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """The new row."""
        self.shown = time.perf_counter()
        self.display.show(row, training.over)

    def on_progress(self, training: Training) -> None:
        """Between rows, the number of steps."""
        if time.perf_counter() - self.shown > self.every:
            self.shown = time.perf_counter()
            self.display.tick(training.row, training.steps)


class Checkpoints(Callback):
    """A checkpoint every `checkpoint.every_steps` agent steps or `checkpoint.every_seconds`."""

    def __init__(self) -> None:
        self.due = 0.0

    def on_start(self, training: Training) -> None:
        """Set the time of the first one."""
        self._schedule(training)

    def on_progress(self, training: Training) -> None:
        """Save if it is time; the last checkpoint is the run's own."""
        now = training.steps if training.config.checkpoint.every_steps else time.perf_counter()
        if now >= self.due and training.steps < training.config.steps:
            training.save_on_the_way()
            self._schedule(training)

    def _schedule(self, training: Training) -> None:
        every = training.config.checkpoint
        if every.every_steps:
            self.due = (training.steps // every.every_steps + 1) * every.every_steps
        else:
            self.due = time.perf_counter() + every.every_seconds


class StopAtReturn(Callback):
    """Stop when the mean return of the last episodes reaches `score`, in a report over at least `episodes`."""

    def __init__(self, score: float, episodes: int = 100) -> None:
        self.score, self.episodes = score, episodes

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """Look at the newest mean."""
        enough = len(training.meter.returns) >= min(self.episodes, training.meter.returns.maxlen or self.episodes)
        if enough and row["return"] is not None and row["return"] >= self.score:
            training.stop(f"return {row['return']:.4g} reached {self.score:g}")


CALLBACKS: tables.Table[type[Callback]] = tables.CALLBACKS
"""Name -> class without arguments, for `--callbacks NAME`; filled by plug-ins."""


def make(names: Iterable[str]) -> list[Callback]:
    """The registered callbacks of these names."""
    return [CALLBACKS[name]() for name in names]
