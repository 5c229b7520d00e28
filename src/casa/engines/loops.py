"""The two training loops: `sync` is bitwise deterministic; `async` overlaps acting and learning.

Both yield `Progress`, which logging, display and checkpoints consume. Inside `paused()` neither acting nor learning
runs, so the consumer can save or change the system.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol

from casa.engines.system import System
from casa.rollout.actor import Episode
from casa.runtime.stopwatch import Stopwatch
from casa.runtime.streams import on, synchronize


class Progress(NamedTuple):
    """Finished episodes and the scalars of each learner step since the last item."""

    episodes: list[Episode]
    updates: list[dict[str, float]]


class Loop(Protocol):
    """A training loop to iterate over. Its clock measures how long the learner worked and waited."""

    clock: Stopwatch

    def __iter__(self) -> Iterator[Progress]:
        """Yield progress until all agent steps are taken and all due learner steps are done."""

    def paused(self) -> AbstractContextManager[None]:
        """A context in which neither acting nor learning runs."""


class SyncLoop:
    """Act, receive, run all due learner steps; repeat. One item per vector-env step; bitwise deterministic."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.clock = Stopwatch("learner", "waiting")

    def __iter__(self) -> Iterator[Progress]:
        """Yield progress until all agent steps are taken."""
        system = self.system
        while system.steps < system.config.steps:
            for actor in system.actors:
                actor.act()
            for actor in system.actors:
                system.absorb(actor)
            system.sampler.observe()
            began = time.perf_counter()
            updates = []
            while system.sampler.ready():
                sample = system.sampler.next()
                updates.append(system.learn(sample))
            self.clock.add("learner", began, "learn")
            system.pull_if_due(wait=True)
            yield Progress(system.take_episodes(), updates)

    def paused(self) -> AbstractContextManager[None]:
        """A no-op: between two items nothing runs anyway."""
        return nullcontext()


class AsyncLoop:
    """A thread acts while the caller's thread learns. One item per learner step, or after 50 ms without one.

    Environments are served in groups: while one group is served, the others step. The sampler limits both threads: the
    actor waits if the learner is too far behind, the learner waits for full batches.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.clock = Stopwatch("learner", "waiting")
        self._changed = threading.Condition(system.sampler.lock)
        self._stop = self._hold = self._idle = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._act, name="casa-actor", daemon=True)

    def __iter__(self) -> Iterator[Progress]:
        """Yield progress until all agent steps are taken and all due learner steps are done."""
        self._thread.start()
        try:
            while True:
                updates = self._learn()
                with self._changed:
                    over = not self._thread.is_alive() and not self.system.sampler.ready()
                    if self._error is not None:
                        raise self._error
                yield Progress(self.system.take_episodes(), updates)
                if over:
                    return
        finally:
            with self._changed:
                self._stop = True
                self._changed.notify_all()
            while self._thread.is_alive() and not self.system.abandoned:
                self._thread.join(0.2)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the acting thread between two env steps."""
        with self._changed:
            self._hold = True
            while not self._idle and self._thread.is_alive() and not self.system.abandoned:
                self._changed.wait(0.05)
        synchronize(self.system.device)
        try:
            yield
        finally:
            with self._changed:
                self._hold = False
                self._changed.notify_all()

    def _learn(self) -> list[dict[str, float]]:
        system, began = self.system, time.perf_counter()
        with self._changed:
            if not system.sampler.ready():
                self._changed.wait(0.05)
            sample = system.sampler.next() if system.sampler.ready() else None
            self._changed.notify_all()
        got = self.clock.add("waiting", began, "wait for a batch, gather it")
        if sample is None:
            return []
        scalars = system.learn(sample)
        self.clock.add("learner", got, "learn")
        return [scalars]

    def _act(self) -> None:
        system = self.system
        try:
            with on(system.stream):
                while (go_on := self._permission()) is not None:
                    for actor in system.actors:
                        # Send the reset observations' actions before receiving: the vector env serves the most
                        # recent group.
                        if actor.running and not (go_on and actor.awaiting_actions):
                            system.absorb(actor)
                        if go_on:
                            actor.act()
                    system.pull_if_due(wait=False)
                    with self._changed:
                        system.sampler.observe()
                        self._changed.notify_all()
        except BaseException as error:
            self._error = error

    def _permission(self) -> bool | None:
        """True: receive and send new actions; False: only receive, since all steps are taken or in flight; None: stop.

        Blocks while the loop is paused or the learner is too far behind. Environments that finish meanwhile wait, too.
        """
        system = self.system
        with self._changed:
            while not self._stop:
                under_way = sum(actor.sent for actor in system.actors)
                over = system.steps + under_way >= system.config.steps
                if over and not under_way:
                    return None
                if not self._hold and system.sampler.room():
                    self._idle = False
                    return not over
                self._idle = True
                self._changed.notify_all()
                self._changed.wait(0.5)
            return None


LOOPS: dict[str, Callable[[System], Loop]] = {"sync": SyncLoop, "async": AsyncLoop}
