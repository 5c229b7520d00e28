"""A training run from beginning to end: directory, system, loop, reports, checkpoints, signals, summary."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from casa.config import differences, from_yaml, to_yaml
from casa.envs.names import require_trust, resolve
from casa.errors import UserError
from casa.rollout.actor import Episode
from casa.schema import Device, RunConfig
from casa.train import checkpoint
from casa.train.checkpoint import Checkpoint
from casa.train.display import Display, summary
from casa.train.interrupt import Interrupt
from casa.train.learner import Diverged
from casa.train.loops import LOOPS, Loop
from casa.train.metrics import Meter
from casa.train.process import prepare
from casa.train.resources import GROUPS, pick_device, pick_mode
from casa.train.rundir import RunDir
from casa.train.system import System
from casa.train.views import Views

SMALL_REPLAY = 256 * 2**20
"""A replay of up to this many bytes is saved with a checkpoint unless the configuration says otherwise."""


def train(config: RunConfig, console: Console | None = None) -> dict[str, Any]:
    """Train from the beginning in a new run directory; the last row of metrics."""
    resolve(config.env.id)  # a misspelt name leaves no directory
    with RunDir.create(Path(config.run_dir)) as directory:
        return Run(config, directory, console or Console()).go()


def resume(
    run: Path,
    console: Console | None = None,
    steps: int | None = None,
    trust_env: bool = False,
    device: Device | None = None,
) -> dict[str, Any]:
    """Continue the run in a directory from its newest whole checkpoint, to `steps` agent steps, on `device`, if given.

    `trust_env`: its environment may be a module's, whose code is then run.
    """
    console = console or Console()
    with RunDir.open(run) as directory:
        config = replace(from_yaml(directory.read_config()), run_dir=str(run))
        require_trust(config.env.id, trust_env, str(run))
        config = replace(config, steps=config.steps if steps is None else steps, device=device or config.device)
        config.validate()
        pick_device(config.device)
        saved = checkpoint.load(run, on_damage=lambda text: console.print(f"[bold red]{text}"))
        if (taken := saved.meta["system"]["steps"]) >= config.steps:
            raise UserError(f"the run in {run} has taken {taken:,} steps; give --steps more than {config.steps:,}")
        directory.write_config(to_yaml(config))
        return Run(config, directory, console, saved).go()


class Run:
    """One process's part of a run."""

    def __init__(
        self, config: RunConfig, directory: RunDir, console: Console, saved: Checkpoint | None = None
    ) -> None:
        self.config, self.directory, self.console, self.saved = config, directory, console, saved
        device = pick_device(config.device)
        self.mode = pick_mode(config)
        prepare(self.mode, device)
        self.best = -np.inf
        self.row: dict[str, Any] = {}

    def go(self) -> dict[str, Any]:
        """Run to the end, to an interrupt or to an error; whatever happens, a whole checkpoint remains."""

        def note(text: str) -> None:
            self.console.print(text, highlight=False)

        with ExitStack() as stack:
            for text in self.directory.notes:
                note(text)
            self.system = System(self.config, GROUPS[self.mode], note)
            stack.callback(self.system.close)
            self.loop: Loop = LOOPS[self.mode](self.system)
            self.meter = Meter(self.system, self.loop)
            self._restore()
            self.views = stack.enter_context(Views(self.config, self.directory.path))
            self.display = stack.enter_context(Display(self.console, self.config, self.system, self.mode))
            self.interrupt = stack.enter_context(Interrupt(self.display.note))
            if self.saved is None:
                # Not before all parts are made: a mistake in the configuration leaves a directory that can be used.
                self.directory.write_config(to_yaml(self.config))
                self.save()
            self.system.begin()
            try:
                self._consume()
            except Diverged as error:
                raise self._diverged(error) from None
            except UserError:
                self.cut_and_save(wait=False)  # what has been learned so far is sound; the environment was not
                note(self._how_to_resume())
                raise
            self._cut()
            if self.system.steps > self.row.get("step", -1):
                self._log(final=True)
            self.save()
        self._report_end()
        return self.row

    def _consume(self) -> None:
        config = self.config
        # Closing the loop also ends its acting thread, before anything is saved.
        iterator: Iterator[Any] = iter(self.loop)
        next_row = _after(self.system.steps, config.log.every_steps)
        next_save = self._next_save()
        shown = time.perf_counter()
        try:
            for progress in iterator:
                self._take(progress.episodes, progress.updates)
                if self.interrupt.requested:
                    return
                now = time.perf_counter()
                # The last row comes when everything is learned.
                if next_row <= self.system.steps < config.steps:
                    next_row = _after(self.system.steps, config.log.every_steps)
                    self._log()
                    shown = now
                elif now - shown > (1.0 if self.console.is_terminal else config.log.every_seconds):
                    shown = now
                    self.display.tick(self.row, self.system.steps)
                at = self.system.steps if config.checkpoint.every_steps else now
                if at >= next_save and self.system.steps < config.steps:
                    with self.loop.paused():
                        self._save_on_the_way()
                    next_save = self._next_save()
        finally:
            iterator.close()  # type: ignore[attr-defined]  # a generator

    def _next_save(self) -> float:
        """The agent step or, where there is no number of steps, the time at which a checkpoint is due."""
        every = self.config.checkpoint
        if every.every_steps:
            return _after(self.system.steps, every.every_steps)
        return time.perf_counter() + every.every_seconds

    def _save_on_the_way(self) -> None:
        if self.config.checkpoint.exact:
            self.cut_and_save()
            self.system.begin()
        else:
            self._take(self.system.take_episodes(), [])
            self.save()

    def _log(self, final: bool = False) -> None:
        self.row = self.meter.row()
        self.directory.metrics.write(self.row)
        self.views.write(self.row)
        self.display.show(self.row, final)

    def _take(self, episodes: list[Episode], updates: list[dict[str, float]]) -> None:
        self.meter.add(episodes, updates)
        for episode in episodes:
            self.directory.episodes.write({"step": self.system.steps, **episode._asdict()})

    def cut_and_save(self, wait: bool = True) -> None:
        """A boundary: afterwards nothing depends on the emulators' state, so a resumed run continues equally."""
        self._cut(wait)
        self.save()

    def _cut(self, wait: bool = True) -> None:
        self.system.cut(wait)
        self._take(self.system.take_episodes(), [])

    def save(self) -> None:
        """Write a checkpoint of everything but the emulators, and the data where it is not worth its bytes."""
        system, choice = self.system, self.config.checkpoint.replay
        small = self._has_replay and system.ring.shape.bytes <= SMALL_REPLAY
        wanted = small or self.config.checkpoint.exact
        groups, counters = system.state(choice == "yes" or (choice == "auto" and wanted))
        score = float(np.mean(self.meter.returns)) if self.meter.returns else -np.inf
        is_best = score > self.best
        self.best = max(score, self.best)
        meta = {
            "system": counters,
            "returns": list(self.meter.returns),
            "lengths": list(self.meter.lengths),
            "means": self.meter.state(),
            "best": self.best,
            "seconds": self.meter.earlier + time.perf_counter() - self.meter.began,
            "config": to_yaml(self.config),
            "spec": {**asdict(system.spec), "obs_dtype": system.spec.obs_dtype.name},
        }
        self.directory.sync()
        checkpoint.save(
            self.directory.path, system.steps, groups, meta, keep=self.config.checkpoint.keep, best=is_best
        )

    @property
    def _has_replay(self) -> bool:
        """Whether the data is more than what the actors make in a moment."""
        return self.config.data.kind == "prioritized"

    def _restore(self) -> None:
        if self.saved is None:
            return
        meta = self.saved.meta
        try:
            self.system.load_state(self.saved.state, meta["system"])
        except (RuntimeError, KeyError, ValueError):
            changed = ", ".join(differences(meta["config"], to_yaml(self.config)))
            what = f"does not fit config.yaml, in which was changed: {changed}"
            if not changed:
                what = "holds another network than this version of casa builds for its configuration; train anew"
            raise UserError(f"the checkpoint {self.saved.path} {what}") from None
        self.meter.returns.extend(meta["returns"])
        self.meter.lengths.extend(meta["lengths"])
        self.meter.load_state(meta["means"])
        self.meter.earlier, self.meter.last_steps = meta["seconds"], self.system.steps
        self.best = meta["best"]
        self.directory.drop_after(self.system.steps)
        self.console.print(f"resumed at {self.system.steps:,} steps from {self.saved.path}", highlight=False)
        if "replay" not in self.saved.state and self._has_replay:
            self.console.print("the replay was not saved: it fills anew before learning goes on", highlight=False)

    def _diverged(self, error: Diverged) -> UserError:
        dump = self.directory.path / "diverged.json"
        dump.write_text(json.dumps({"step": self.system.steps, "error": str(error), "row": self.row}, indent=1))
        return UserError(f"{error} (written to {dump}; the last good checkpoint is kept)")

    def _report_end(self) -> None:
        if self.interrupt.requested:
            self.console.print(self._how_to_resume(), highlight=False)
        else:
            self.console.print(summary(self.config, self.system, self.row, self.directory.written()))

    def _how_to_resume(self) -> str:
        trust = " --trust-env" if ":" in self.config.env.id else ""
        return f"saved at {self.system.steps:,} steps; continue with: casa resume {self.directory.path}{trust}"


def _after(steps: int, every: int) -> int:
    """The first multiple of `every` beyond `steps`."""
    return (steps // every + 1) * every
