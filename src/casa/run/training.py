"""A training run from beginning to end: directory, system, loop, callbacks, signals, summary."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from casa.config.fields import Device, RunConfig
from casa.config.load import differences, to_yaml
from casa.config.safe_yaml import load_plain
from casa.engines.build import build_system
from casa.engines.cluster.loop import CLUSTER_LOOPS
from casa.engines.cluster.system import build_cluster
from casa.engines.loops import LOOPS, Loop
from casa.engines.resolve import GROUPS, forget_machine, resolve_machine
from casa.engines.system import System
from casa.envs.names import require_trust, resolve
from casa.envs.types import Abandoned
from casa.errors import UserError, describe
from casa.learn.learner import Diverged
from casa.rollout.actor import Episode
from casa.run import callbacks as built_in
from casa.run import checkpoint, durable
from casa.run.callbacks import Callback
from casa.run.checkpoint import Checkpoint
from casa.run.display import Display, summary
from casa.run.fit import MALFORMED, configured, does_not_fit
from casa.run.interrupt import Interrupt, Interrupted
from casa.run.messages import say
from casa.run.metrics import Meter
from casa.run.rundir import RunDir
from casa.run.views import Views, resolve_views
from casa.run.watchdog import Watchdog
from casa.runtime.output import sturdy_console
from casa.runtime.resources import is_out_of_memory, pick_device
from casa.runtime.threads import prepare

SMALL_REPLAY = 256 * 2**20
"""Largest replay, in bytes, that checkpoint.replay "auto" saves (checkpoint.exact: any size)."""


def train(
    config: RunConfig, console: Console | None = None, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Train from scratch in a new run directory; returns the last row of metrics.

    `Interrupted` if a signal stopped it before its last step.
    """
    resolve(config.env.id)  # fail on a misspelt name before a directory is created
    with RunDir.create(Path(config.run_dir)) as directory:
        return Training(config, directory, console or sturdy_console(), callbacks=callbacks).go()


def resume(
    run: Path,
    console: Console | None = None,
    steps: int | None = None,
    trust: bool = False,
    device: Device | None = None,
    lr: float | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Continue a run from its newest undamaged checkpoint, to `steps` agent steps and on `device`, if given.

    With another number of steps, the learning rate decays linearly from its current value to 0 at the new end; `lr`
    replaces the current value. A temperature or an ε that falls (`agent.tau_decay`, `agent.epsilon_decay`) follows the
    learning rate. `trust`: allow importing the modules that the run names (environment, plug-ins).
    `Interrupted` if a signal stopped it before its last step.
    """
    console = console or sturdy_console()
    with RunDir.open(run) as directory:
        saved = checkpoint.load(run, on_damage=lambda text: console.print(text, style="bold red", markup=False))
        config = configured(directory, saved, trust)
        require_trust(config.env.id, trust, str(run))
        config = replace(config, steps=config.steps if steps is None else steps)
        if device is not None and pick_device(device).type != config.device:
            config = replace(forget_machine(config), device=device)
        config.validate()
        pick_device(config.device)
        if saved.step >= config.steps:
            raise UserError(
                f"the run in {run} has taken {saved.step:,} steps; give --steps more than {config.steps:,}"
            )
        return Training(config, directory, console, saved, callbacks, lr).go()


class Training:
    """The part of a run that one process executes. Callbacks receive it as `training`."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDir,
        console: Console,
        saved: Checkpoint | None = None,
        callbacks: Sequence[Callback] = (),
        lr: float | None = None,
    ) -> None:
        self.lr = lr
        self.config = resolve_views(resolve_machine(config))
        self.directory, self.console, self.saved = directory, console, saved
        self.mode = self.config.mode
        self.best = -np.inf
        self.row: dict[str, Any] = {}
        self.over = False
        self._more = [*callbacks, *built_in.make(self.config.callbacks)]
        self._stopped = ""
        self._saved_at = 0  # agent steps in the newest checkpoint
        self._kept = ("", 0)  # its folder, and the learner steps applied in it

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def steps(self) -> int:
        """Agent steps taken so far."""
        return self.system.steps

    def stop(self, reason: str) -> None:
        """End the run after the current step, with a checkpoint, as if all steps were taken."""
        self._stopped = self._stopped or reason

    def go(self) -> dict[str, Any]:
        """Run until the end, a signal or an error; a valid checkpoint always remains. Returns the last row.

        `Interrupted` if a signal stopped the run before its last step.
        """
        threads = torch.get_num_threads()
        prepare(self.mode, pick_device(self.config.device))
        try:
            with ExitStack() as stack:
                self._go(stack)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            advice = "lower env.num_envs, data.batch, data.seq_len or net.hidden"
            raise UserError(f"out of memory: {describe(error)}; {advice}") from error
        finally:
            torch.set_num_threads(threads)
        self._report_end()
        return self.row

    def _go(self, stack: ExitStack) -> None:
        for text in self.directory.notes:
            self.note(text)
        on_cluster = self.config.engine == "ray"
        self.system: System = (
            build_cluster(self.config, self.note)
            if on_cluster
            else build_system(self.config, GROUPS[self.mode], self.note)
        )
        stack.callback(self.system.close)
        self.config = self.system.config = self._resolve_replay(self.system.config)
        self.loop: Loop = (CLUSTER_LOOPS if on_cluster else LOOPS)[self.mode](self.system)
        self.meter = Meter(self.system, self.loop)
        self._restore()
        purge = None if self.saved is None else self.saved.step + 1
        views = stack.enter_context(Views(self.config, self.path, self.note, purge))
        display = stack.enter_context(Display(self.console, self.config, self.system, self.mode))
        in_main_thread = self.mode == "sync"
        self.interrupt = Interrupt(display.note, lambda: in_main_thread and self.system.in_environment())
        stack.enter_context(self.interrupt)
        stack.enter_context(Watchdog(self.system, self.interrupt, display.note))
        self.callbacks = [
            built_in.Logs(views),
            built_in.Screen(display),
            built_in.Warnings(),
            built_in.Checkpoints(),
            *self._more,
            built_in.ReportFile(),
        ]
        # Write the config after all parts are built: a wrong configuration then leaves the directory usable.
        self.directory.write_config(to_yaml(self.config))
        for callback in self.callbacks:
            callback.on_start(self)
        if self.saved is None:
            self.save()
        try:
            self._run()
        except Diverged as error:
            raise self._diverged(error) from None

    def _run(self) -> None:
        with suppress(Abandoned):  # raised after a signal, if the environments do not answer
            self.system.begin()
            self._loop()
        self._cut()
        self.over = True
        if self.steps > self.row.get("step", -1):
            self._report()
        self.save()
        for callback in self.callbacks:
            callback.on_end(self)

    def _loop(self) -> None:
        try:
            self._consume()
        except Diverged:
            raise
        except (Exception, SystemExit):
            # The environment or a callback failed, but the training state is valid.
            self.cut_and_save(wait=False)
            self.note(self._how_to_resume())
            raise

    def note(self, text: str) -> None:
        """Print a message on the console."""
        say(self.console, text)

    def _consume(self) -> None:
        every = self.config.log.every_steps
        # Closing the iterator also ends the acting thread, before anything is saved.
        iterator: Iterator[Any] = iter(self.loop)
        next_row = _after(self.steps, every)
        try:
            for progress in iterator:
                self._take(progress.episodes, progress.updates)
                if self.interrupt.requested or self._stopped:
                    return
                # The last row is reported after the last learner step.
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
        """Save a checkpoint in the middle of the run, while acting and learning are paused."""
        with self.loop.paused():
            if self.config.checkpoint.exact:
                self.cut_and_save()
                self.system.begin()
            else:
                self._take(self.system.take_episodes(), [])
                self.save()

    def cut_and_save(self, wait: bool = True) -> None:
        """Truncate all episodes, then save: nothing depends on the emulators' state, so a resumed run is identical."""
        self._cut(wait)
        self.save()

    def _cut(self, wait: bool = True) -> None:
        self.system.cut(wait)
        self._take(self.system.take_episodes(), [])

    def save(self) -> None:
        """Write a checkpoint of everything but the emulators; of the data only if checkpoint.replay is "yes".

        None is written while learner steps are being skipped, since the weights may be the reason. Broken weights are
        an error: `Diverged`.
        """
        system = self.system
        if skipped := system.learner.bad_in_a_row:
            self.note(f"the last {skipped} learner steps were not finite: no checkpoint is written")
            return
        if fault := system.learner.fault():
            raise Diverged(f"the weights are broken: {fault}; use a smaller learner.lr than {self.config.learner.lr:g}")
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
        # The last checkpoint is good: the loss and its gradient were finite in a learner step that followed it.
        good = self._kept[0] if self._applied > self._kept[1] else ""
        keep = self.config.checkpoint.keep
        path = checkpoint.save(self.path, system.steps, groups, meta, keep=keep, best=is_best, good=good)
        self._kept, self._saved_at = (path.name, self._applied), system.steps
        for callback in self.callbacks:
            callback.on_checkpoint(self, path)

    @property
    def _applied(self) -> int:
        """Learner steps that changed the weights."""
        return self.system.learner.steps - self.system.learner.skipped

    def _resolve_replay(self, config: RunConfig) -> RunConfig:
        """Resolve checkpoint.replay "auto": save a small replay buffer, and any data if checkpoint.exact is set."""
        saving = config.checkpoint
        if saving.replay != "auto":
            return config
        small = self.config.data.replays and self.system.ring.shape.bytes <= SMALL_REPLAY
        return replace(config, checkpoint=replace(saving, replay="yes" if small or saving.exact else "no"))

    def _restore(self) -> None:
        if self.saved is None:
            return
        meta = self.saved.meta
        try:
            self.system.load_state(self.saved.state, meta["system"])
            self._reschedule(meta)
            self.meter.returns.extend(float(x) for x in meta["returns"])
            self.meter.lengths.extend(int(x) for x in meta["lengths"])
            self.meter.load_state(meta["means"])
            self.meter.earlier, self.meter.last_steps = float(meta["seconds"]), self.system.steps
            self.best = float(meta["best"])
        except MALFORMED as error:
            _, changed = differences(meta["config"], to_yaml(self.config))
            raise UserError(does_not_fit(self.saved, changed, describe(error))) from error
        self._saved_at, self._kept = self.saved.step, (self.saved.path.name, self._applied)
        self.directory.drop_after(self.system.steps)
        self.note(f"resumed at {self.system.steps:,} steps from {self.saved.path}")
        if "replay" not in self.saved.state and self.config.data.replays:
            self.note("the replay was not saved: it fills again before learning goes on")

    def _reschedule(self, meta: dict[str, Any]) -> None:
        """Continue a resumed run's learning rate from `lr`, if given; UserError if it is too small to go on."""
        peak, system = self.config.learner.lr, self.system
        before = load_plain(meta["config"])["steps"]
        longer = before != self.config.steps
        if longer and "schedule" not in meta["system"]:  # saved by an earlier version
            system.anneal_from_here(max(1 - system.steps / before, 0.0))
        if self.lr is not None:
            if not 0 < self.lr <= peak:
                raise UserError(f"lr must be > 0 and at most the run's own learner.lr {peak:g}, got {self.lr:g}")
            system.anneal_from_here(self.lr / peak)
        elif longer and system.steps >= before:
            left = 1 - system.annealed
            raise UserError(
                f"the learning rate of the run in {self.path} has come down to {left * peak:.2g}: more steps would "
                f"teach it nothing; give --lr, at most its peak {peak:g}, for instance --lr {peak / 5:g}"
            )

    def _diverged(self, error: Diverged) -> UserError:
        dump = self.path / "diverged.json"
        durable.replace(dump, json.dumps({"step": self.steps, "error": str(error), "row": self.row}, indent=1).encode())
        return UserError(f"{error} (written to {dump}; the last good checkpoint, of step {self._saved_at:,}, is kept)")

    def _report_end(self) -> None:
        if self.interrupt.requested and self.steps < self.config.steps:
            self.note(self._how_to_resume())
            raise Interrupted(self.interrupt.number)
        if self._stopped:
            self.note(f"stopped at {self.steps:,} steps: {self._stopped}")
        self.console.print(summary(self.config, self.system, self.row, self.directory.written()))

    def _how_to_resume(self) -> str:
        trust = " --trust" if ":" in self.config.env.id or self.config.plugins else ""
        path = shlex.quote(str(self.path))
        return f"saved at {self._saved_at:,} steps; continue with: casa resume {path}{trust}"


def _after(steps: int, every: int) -> int:
    """The smallest multiple of `every` above `steps`."""
    return (steps // every + 1) * every
