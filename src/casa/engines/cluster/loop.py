"""The asynchronous loop over a cluster: a thread receives from the workers while the caller's thread learns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from casa.engines.cluster.crew import DEPTH, Crew, RemoteActor
from casa.engines.cluster.system import ClusterSystem
from casa.engines.cluster.worker import Rollout
from casa.engines.loops import AsyncLoop, Loop, SyncLoop
from casa.runtime.streams import on


class ClusterLoop(AsyncLoop):
    """As `AsyncLoop`, but whichever workers are ready are served, each with up to `DEPTH` calls under way.

    A call asks for one sequence of each environment. Back-pressure: nothing is received or asked for while the learner
    is too far behind, so at most `DEPTH` results of each worker wait. The backlog is limited as in the local loop; a
    worker's first call is not counted, since locally the environments step meanwhile, too.
    """

    system: ClusterSystem

    def __init__(self, system: ClusterSystem) -> None:
        super().__init__(system)
        self.clock.seconds["transfer"] = 0.0

    def _act(self) -> None:
        crew = self.system.crew
        try:
            with on(self.system.stream):
                while (go_on := self._permission()) is not None:
                    for actor in crew.ready(timeout=0.02):
                        began = time.perf_counter()
                        with self._changed:  # a lost worker's episodes are cut in the ring
                            rollout = actor.receive()
                        if rollout is not None:
                            self._store(actor, rollout)
                        self.clock.add("transfer", began, "receive and write")
                    if go_on:
                        self._ask(crew)
                    self.system.pull_if_due(wait=False)
                    for actor in crew.actors:
                        actor.update()
        except BaseException as error:
            self._error = error

    def _store(self, actor: RemoteActor, rollout: Rollout) -> None:
        system, slots = self.system, rollout.slots
        coming = np.zeros(system.ring.shape.num_envs, dtype=np.int64)
        coming[actor.share.envs] = slots.written - slots.first + 1  # and one that `Ring.cut` may add
        with self._changed:
            while not self._stop and (self._hold or not system.sampler.fits(coming)):
                if not self._hold and not system.sampler.ready():
                    raise RuntimeError("the trajectory ring is too small for a worker's message")
                self._idle = True
                self._changed.notify_all()
                self._changed.wait(0.05)
            self._idle = False
            if self._stop:
                return
            system.count(rollout.steps, actor.store(rollout))
            system.sampler.observe()
            self._changed.notify_all()

    def _ask(self, crew: Crew) -> None:
        system = self.system
        left = system.config.steps - system.steps - sum(actor.sent for actor in crew.actors)
        ahead = sum(slots for actor in crew.actors for _, slots, _ in list(actor.calls)[1:])
        for actor in sorted(crew.actors, key=lambda actor: actor.running):
            slots = min(actor.share.count * system.config.data.seq_len, left)
            again = slots if actor.calls else 0
            if slots <= 0 or (again and (actor.running >= DEPTH or not system.sampler.room(ahead + again))):
                return  # nor is there room for the rest, which have as many calls under way
            actor.ask(slots)
            left -= slots
            ahead += again


CLUSTER_LOOPS: dict[str, Callable[[Any], Loop]] = {"sync": SyncLoop, "async": ClusterLoop}
