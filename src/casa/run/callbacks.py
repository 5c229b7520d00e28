"""Callbacks of a training run. Logs, display and checkpoints are callbacks; users can add their own.

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

import torch

from casa import tables
from casa.actions import CONTINUOUS
from casa.errors import describe
from casa.heads import HEADS
from casa.learn.rewards import REWARDS
from casa.rollout.actor import Episode
from casa.run.digest import REPORT, write_report
from casa.run.display import Display
from casa.run.views import Views

if TYPE_CHECKING:
    from casa.run.training import Training


COLLAPSED = 1e-3
COLLAPSED_DENSITY = -5.0
"""Nats, of discrete actions and of each continuous part: an entropy below this in three reports in a row is called a
collapse. A density on [-1, 1] has the entropy log 2 if it is uniform, and -5 if it is about 0.007 wide."""


class Callback:
    """Override the methods you need. Each runs in the learner's thread, between two learner steps.

    `training` is the current run: `config`, `path`, `steps`, `row` (the latest report), `system` (networks,
    environments, data) and `stop(reason)`, which ends the run early, with a checkpoint, as if all steps were taken.
    """

    def on_start(self, training: Training) -> None:
        """Called before the first step: all parts are built, and a resumed run has its state restored."""

    def on_update(self, training: Training, scalars: dict[str, float]) -> None:
        """Called after each learner step with its loss and norm, and losses and diagnostics of every few steps.

        Empty if the step was skipped.
        """

    def on_episode(self, training: Training, episode: Episode) -> None:
        """Called for each finished episode: `env`, `score` (the raw return), `length`."""

    def on_progress(self, training: Training) -> None:
        """Called after every vector-env step (sync), or every learner step or 50 ms without one (async)."""

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """Called with each row of metrics, every `log.every_steps` agent steps."""

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """Called after a checkpoint has been written."""

    def on_end(self, training: Training) -> None:
        """Called at the end of the run, after its last checkpoint; not if the run failed."""


class Logs(Callback):
    """metrics.jsonl, episodes.jsonl, TensorBoard and Weights & Biases."""

    def __init__(self, views: Views) -> None:
        self.views = views

    def on_episode(self, training: Training, episode: Episode) -> None:
        """Write a record to episodes.jsonl."""
        training.directory.episodes.write({"step": training.steps, **episode._asdict()})

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """Write a record to metrics.jsonl, and the same to each view."""
        training.directory.metrics.write(row)
        self.views.write(row)


class Screen(Callback):
    """The live display, or plain lines if the output is piped."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.every = 1.0 if display.console.is_terminal else display.every
        self.shown = time.perf_counter()

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """Show the new row."""
        self.shown = time.perf_counter()
        self.display.show(row, training.over)

    def on_progress(self, training: Training) -> None:
        """Between two rows, update the number of steps."""
        if time.perf_counter() - self.shown > self.every:
            self.shown = time.perf_counter()
            self.display.tick(training.row, training.steps)


class Checkpoints(Callback):
    """A checkpoint every `checkpoint.every_steps` agent steps or `checkpoint.every_seconds`."""

    def __init__(self) -> None:
        self.due = 0.0

    def on_start(self, training: Training) -> None:
        """Schedule the first checkpoint."""
        self._schedule(training)

    def on_progress(self, training: Training) -> None:
        """Save if due, but not while learner steps are skipped; `Training` itself saves the last checkpoint."""
        if training.system.learner.bad_in_a_row:
            return
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


class Warnings(Callback):
    """Says once when a run cannot learn: all shaped rewards are 0, or the policy no longer explores."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.collapsed = 0  # reports in a row

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """Look at the newest row."""
        agent = training.config.agent
        if row.get("shaped_reward") == 0 and row["return"] and loses_rewards(agent.reward):
            self._say(
                training,
                f"every reward is 0 after agent.reward {agent.reward!r}, but episodes return {row['return']:.4g}: "
                "nothing can be learned from them; try --agent.reward raw",
            )
        parts = training.system.spec.actions.choices.count(CONTINUOUS)
        limit = COLLAPSED_DENSITY * parts if parts else COLLAPSED
        self.collapsed = self.collapsed + 1 if row.get("entropy", 1.0) < limit else 0
        if self.collapsed >= 3 and agent.behaviour == "sample":
            knob = "agent.tau" if agent.tau_decay == 1 else "agent.tau or agent.tau_decay"
            knob = knob if HEADS[agent.head].tempered else "agent.entropy_cost"
            self._say(
                training,
                f"the policy has collapsed (entropy {row['entropy']:.1e}): it takes one action in every state and no "
                f"longer explores; start again with a larger {knob} or a smaller learner.lr",
            )

    def _say(self, training: Training, text: str) -> None:
        topic = text[:20]
        if topic not in self.said:
            self.said.add(topic)
            training.note(f"warning: {text}")


class ReportFile(Callback):
    """RUN/report.html at the end of the run; if it cannot be written, the run says so and ends as well."""

    def on_end(self, training: Training) -> None:
        """Write it."""
        try:
            write_report([training.path], training.path / REPORT)
        except Exception as error:
            training.note(f"warning: no report was written: {describe(error)}")


class StopAtReturn(Callback):
    """Stop when a report's mean return reaches `score`, once at least `episodes` episodes have finished."""

    def __init__(self, score: float, episodes: int = 100) -> None:
        self.score, self.episodes = score, episodes

    def on_report(self, training: Training, row: dict[str, Any]) -> None:
        """Compare the new mean return with `score`."""
        enough = len(training.meter.returns) >= min(self.episodes, training.meter.returns.maxlen or self.episodes)
        if enough and row["return"] is not None and row["return"] >= self.score:
            training.stop(f"return {row['return']:.4g} reached {self.score:g}")


def loses_rewards(name: str) -> bool:
    """Whether a reward transform maps some reward to 0. If it does not, a batch of zeros just had no rewards."""
    return bool((REWARDS[name](torch.tensor([-1.0, -0.01, 0.01, 1.0])) == 0).any())


CALLBACKS: tables.Table[type[Callback]] = tables.CALLBACKS
"""Name -> class whose constructor takes no arguments, for `--callbacks NAME`; filled by plug-ins."""


def make(names: Iterable[str]) -> list[Callback]:
    """Instances of the registered callbacks with these names."""
    return [CALLBACKS[name]() for name in names]
