"""A training run from beginning to end: directory, system, loop, callbacks, signals, summary."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from casa.config.fields import Device, RunConfig
from casa.config.load import differences, read_run, to_yaml
from casa.engines.build import build_system
from casa.engines.loops import LOOPS, Loop
from casa.engines.resolve import GROUPS, forget_machine, resolve_machine
from casa.envs.names import require_trust, resolve
from casa.errors import UserError
from casa.learn.learner import Diverged
from casa.rollout.actor import Episode
from casa.run import callbacks as built_in
from casa.run import checkpoint
from casa.run.callbacks import Callback
from casa.run.checkpoint import Checkpoint
from casa.run.display import Display, summary
from casa.run.interrupt import Interrupt
from casa.run.metrics import Meter
from casa.run.rundir import RunDir
from casa.run.views import Views, resolve_views
from casa.runtime.resources import pick_device
from casa.runtime.threads import prepare

SMALL_REPLAY = 256 * 2**20
"""A replay of up to this many bytes is saved with a checkpoint unless the configuration says otherwise."""


def train(
    config: RunConfig, console: Console | None = None, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Train from the beginning in a new run directory; the last row of metrics."""
    resolve(config.env.id)  # a misspelt name leaves no directory
    with RunDir.create(Path(config.run_dir)) as directory:
        return Training(config, directory, console or Console(), callbacks=callbacks).go()


def resume(
    run: Path,
    console: Console | None = None,
    steps: int | None = None,
    trust: bool = False,
    device: Device | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Continue the run in a directory from its newest whole checkpoint, to `steps` agent steps, on `device`, if given.

    `trust`: modules that the run names, its environment's and plug-ins, may be imported.
    """
    console = console or Console()
    with RunDir.open(run) as directory:
        config = replace(read_run(directory.read_config(), str(directory.config), trust), run_dir=str(run))
        require_trust(config.env.id, trust, str(run))
        config = replace(config, steps=config.steps if steps is None else steps)
        if device is not None and device != config.device:
            config = replace(forget_machine(config), device=device)
        config.validate()
        pick_device(config.device)
        saved = checkpoint.load(run, on_damage=lambda text: console.print(f"[bold red]{text}"))
        if (taken := saved.meta["system"]["steps"]) >= config.steps:
            raise UserError(f"the run in {run} has taken {taken:,} steps; give --steps more than {config.steps:,}")
        return Training(config, directory, console, saved, callbacks).go()


class Training:
    """One process's part of a run. Callbacks see it as `training`."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDir,
        console: Console,
        saved: Checkpoint | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config = resolve_views(resolve_machine(config))
        self.directory, self.console, self.saved = directory, console, saved
        self.mode = self.config.mode
        self.best = -np.inf
        self.row: dict[str, Any] = {}
        self.over = False
        self._more = [*callbacks, *built_in.make(self.config.callbacks)]
        self._stopped = ""

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def steps(self) -> int:
        """Agent steps taken so far."""
        return self.system.steps

    def stop(self, reason: str) -> None:
        """End the run after the step under way, with a checkpoint, as if its steps were over."""
        self._stopped = self._stopped or reason

    def go(self) -> dict[str, Any]:
        """Run to the end, to an interrupt or to an error; whatever happens, a whole checkpoint remains."""
        threads = torch.get_num_threads()
        prepare(self.mode, pick_device(self.config.device))
        try:
            with ExitStack() as stack:
                self._go(stack)
        finally:
            torch.set_num_threads(threads)
        self._report_end()
        return self.row

    def _go(self, stack: ExitStack) -> None:
        for text in self.directory.notes:
            self.note(text)
        self.system = build_system(self.config, GROUPS[self.mode], self.note)
        stack.callback(self.system.close)
        self.config = self.system.config = self._resolve_replay(self.system.config)
        self.loop: Loop = LOOPS[self.mode](self.system)
        self.meter = Meter(self.system, self.loop)
        self._restore()
        views = stack.enter_context(Views(self.config, self.path))
        display = stack.enter_context(Display(self.console, self.config, self.system, self.mode))
        self.interrupt = stack.enter_context(Interrupt(display.note))
        self.callbacks = [built_in.Logs(views), built_in.Screen(display), built_in.Checkpoints(), *self._more]
        # Written when all parts are made: a mistake in the configuration leaves a directory that can be used.
        self.directory.write_config(to_yaml(self.config))
        if self.saved is None:
            self.save()
        self.system.begin()
        for callback in self.callbacks:
            callback.on_start(self)
        try:
            self._consume()
        except Diverged as error:
            raise self._diverged(error) from None
        except UserError:
            self.cut_and_save(wait=False)  # what has been learned so far is sound; the environment was not
            self.note(self._how_to_resume())
            raise
        self._cut()
        self.over = True
        if self.steps > self.row.get("step", -1):
            self._report()
        self.save()
        for callback in self.callbacks:
            callback.on_end(self)

    def note(self, text: str) -> None:
        """A sentence for the person in front of the screen."""
        self.console.print(text, highlight=False, markup=False)

    def _consume(self) -> None:
        every = self.config.log.every_steps
        # Closing the loop also ends its acting thread, before anything is saved.
        iterator: Iterator[Any] = iter(self.loop)
        next_row = _after(self.steps, every)
        try:
            for progress in iterator:
                self._take(progress.episodes, progress.updates)
                if self.interrupt.requested or self._stopped:
                    return
                # The last row comes when everything is learned.
                if next_row <= self.steps < self.config.steps:
                    next_row = _after(self.steps, every)
                    self._report()
                for callback in self.callbacks:
                    callback.on_progress(self)
        finally:
            iterator.close()  # type: ignore[attr-defined]  # a generator

    def _report(self) -> None:
        self.row = self.meter.row()
        for callback in self.callbacks:
            callback.on_report(self, self.row)

    def _take(self, episodes: list[Episode], updates: list[dict[str, float]]) -> None:
        self.meter.add(episodes, updates)
        for callback in self.callbacks:
            for episode in episodes:
                callback.on_episode(self, episode)
            for scalars in updates:
                callback.on_update(self, scalars)

    def save_on_the_way(self) -> None:
        """A checkpoint in the middle of the run, with nothing moving meanwhile."""
        with self.loop.paused():
            if self.config.checkpoint.exact:
                self.cut_and_save()
                self.system.begin()
            else:
                self._take(self.system.take_episodes(), [])
                self.save()

    def cut_and_save(self, wait: bool = True) -> None:
        """A boundary: afterwards nothing depends on the emulators' state, so a resumed run continues equally."""
        self._cut(wait)
        self.save()

    def _cut(self, wait: bool = True) -> None:
        self.system.cut(wait)
        self._take(self.system.take_episodes(), [])

    def save(self) -> None:
        """Write a checkpoint of everything but the emulators, and the data where it is worth its bytes."""
        system = self.system
        groups, counters = system.state(self.config.checkpoint.replay == "yes")
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
            "spec": system.spec.to_json(),
        }
        self.directory.sync()
        path = checkpoint.save(self.path, system.steps, groups, meta, keep=self.config.checkpoint.keep, best=is_best)
        for callback in self.callbacks:
            callback.on_checkpoint(self, path)

    def _resolve_replay(self, config: RunConfig) -> RunConfig:
        """checkpoint.replay "auto": where it is small, or where the resumed run must be equal to the bit."""
        saving = config.checkpoint
        if saving.replay != "auto":
            return config
        small = self._has_replay and self.system.ring.shape.bytes <= SMALL_REPLAY
        return replace(config, checkpoint=replace(saving, replay="yes" if small or saving.exact else "no"))

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
        self.note(f"resumed at {self.system.steps:,} steps from {self.saved.path}")
        if "replay" not in self.saved.state and self._has_replay:
            self.note("the replay was not saved: it fills again before learning goes on")

    def _diverged(self, error: Diverged) -> UserError:
        dump = self.path / "diverged.json"
        dump.write_text(json.dumps({"step": self.steps, "error": str(error), "row": self.row}, indent=1))
        return UserError(f"{error} (written to {dump}; the last good checkpoint is kept)")

    def _report_end(self) -> None:
        if self.interrupt.requested:
            self.note(self._how_to_resume())
            return
        if self._stopped:
            self.note(f"stopped at {self.steps:,} steps: {self._stopped}")
        self.console.print(summary(self.config, self.system, self.row, self.directory.written()))

    def _how_to_resume(self) -> str:
        trust = " --trust" if ":" in self.config.env.id or self.config.plugins else ""
        return f"saved at {self.steps:,} steps; continue with: casa resume {self.path}{trust}"


def _after(steps: int, every: int) -> int:
    """The first multiple of `every` beyond `steps`."""
    return (steps // every + 1) * every
