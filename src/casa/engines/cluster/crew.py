"""The rollout workers as the learner sees them: calls under way, what came back, who was lost and replaced."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from casa.config.fields import RunConfig
from casa.engines.cluster.session import explained, import_ray, is_lost
from casa.engines.cluster.version import code_version
from casa.engines.cluster.worker import Rollout, RolloutWorker, Share, Weights, shares
from casa.engines.system import System
from casa.envs.types import Abandoned, EnvSpec
from casa.errors import UserError
from casa.nn import Network
from casa.rollout.actor import Episode
from casa.rollout.scale import ReturnScale
from casa.runtime.seeds import seed_for
from casa.runtime.stopwatch import Stopwatch

DEPTH = 2
"""Calls that a worker has at most: it plays the second while the result of the first travels."""
HOPELESS = 5
"""A worker that is lost so many times without a single result ends the run."""
_RECENT = 20.0  # seconds over which a worker's speed is measured


class RemoteActor:
    """One rollout worker, with the interface of `Actor` that the loops use: `act` asks for steps, `absorb` waits."""

    def __init__(self, crew: Crew, share: Share) -> None:
        self.crew, self.share = crew, share
        self.version = 0
        self.steps_absorbed = 0
        self.clock = Stopwatch("environment", "inference")
        self.scale: dict[str, float] = ReturnScale(1, 1.0, lambda x: x).state_dict()
        self.fruitless = 0  # losses since the last result
        self.calls: deque[tuple[Any, int, float]] = deque()  # (result, slots asked for, when), oldest first
        self._results: deque[tuple[float, int]] = deque()  # (when, steps), of late
        self._began = time.monotonic()
        self._seconds = dict(self.clock.seconds)  # of the current process
        self.handle: Any = None
        self._setup: list[Any] = []  # calls that must succeed before any other
        self._has = -1  # version of the weights that were sent last
        self._updating: Any = None  # the last `update`

    @property
    def running(self) -> int:
        """Calls under way."""
        return len(self.calls)

    @property
    def sent(self) -> int:
        """Slots that were asked for."""
        return sum(slots for _, slots, _ in self.calls)

    @property
    def waiting(self) -> float:
        """Seconds since the oldest call, 0 if there is none or it is done. May be called from another thread."""
        for result, _, asked in tuple(self.calls)[:1]:
            return 0.0 if import_ray().wait([result], timeout=0, fetch_local=False)[0] else time.monotonic() - asked
        return 0.0

    @property
    def speed(self) -> float:
        """Steps per second of late. May be called from another thread."""
        now = time.monotonic()
        steps = sum(steps for when, steps in tuple(self._results) if now - when < _RECENT)
        return steps / min(max(now - self._began, 1e-3), _RECENT)

    def start(self) -> Any:
        """Start the process; returns the reference to the spec of its environments."""
        ray, crew, cluster = import_ray(), self.crew, self.crew.config.cluster
        options = {"num_cpus": cluster.actor_cpus, "num_gpus": cluster.actor_gpus}
        self.handle = ray.remote(**options, concurrency_groups={"weights": 1})(RolloutWorker).remote()
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._setup = [self.handle.make_envs.remote(crew.config, self.share, code_version(), crew.threads)]
        return self._setup[0]

    def build(self) -> None:
        """Let it build its parts."""
        self._setup.append(self.handle.build.remote(self.crew.config, self.crew.system.boundaries, self.scale))

    def reset(self, seed: int) -> None:
        """Start new episodes where the learner's ring ends."""
        written = self.crew.system.ring.written[self.share.envs]
        self._setup.append(self.handle.reset.remote(seed, written, self.crew.weights()))
        self._has, self._began = self.version, time.monotonic()

    def act(self) -> None:
        """Ask for one step of each environment, with the newest weights."""
        self.ask(1, None if self._has == self.version else self.crew.weights())
        self._has = self.version

    def ask(self, slots: int, weights: Any = None) -> None:
        """Ask for at least so many more slots."""
        self.calls.append((self.handle.collect.remote(slots, weights), slots, time.monotonic()))

    def absorb(self) -> list[Episode]:
        """Wait for the oldest call and write its slots; no episodes if the worker was lost, and is replaced."""
        ray = import_ray()
        while not ray.wait([self.calls[0][0]], timeout=0.5)[0]:
            if self.crew.system.abandoned:
                raise Abandoned
        rollout = self.receive()
        return [] if rollout is None else self.store(rollout)

    def receive(self) -> Rollout | None:
        """The result of the oldest call, which must be ready; None if the worker was lost. It is replaced then."""
        ray = import_ray()
        self.steps_absorbed = 0
        try:
            ray.get(self._setup)  # an error there is the reason for one here
            self._setup.clear()
            rollout: Rollout = ray.get(self.calls[0][0])
        except Exception as error:
            if not is_lost(error):
                raise explained(error, f"worker {self.share.index}") from None
            self.replace(error)
            return None
        self.calls.popleft()
        return rollout

    def store(self, rollout: Rollout) -> list[Episode]:
        """Write the slots of a result to the learner's ring."""
        self.crew.system.ring.put(self.share.envs, rollout.slots)
        self.fruitless = 0
        self.steps_absorbed = rollout.steps
        now = time.monotonic()
        self._results.append((now, rollout.steps))
        while now - self._results[0][0] > _RECENT:
            self._results.popleft()
        for stage, seconds in rollout.seconds.items():  # the workers act at the same time: shares are their mean
            self.clock.seconds[stage] += (seconds - self._seconds[stage]) / len(self.crew.actors)
        self._seconds = rollout.seconds
        self.scale = rollout.scale
        self.crew.system.return_scale.load_state_dict(merged([actor.scale for actor in self.crew.actors]))
        return rollout.episodes

    def replace(self, error: BaseException) -> None:
        """Replace a lost worker: its episodes are truncated, and what it had not sent is lost."""
        crew, system = self.crew, self.crew.system
        self.calls.clear()
        self._updating = None
        import_ray().kill(self.handle)
        self.fruitless += 1
        reason = str(error).splitlines()[0].strip(" .")
        if self.fruitless >= HOPELESS:
            raise UserError(f"worker {self.share.index} was lost {HOPELESS} times in a row without a result: {reason}")
        crew.restarts += 1
        self.share = replace(self.share, restarts=self.share.restarts + 1)
        crew.note(f"worker {self.share.index} was lost and is started again, loss {crew.restarts} so far: {reason}")
        system.ring.cut(self.version, self.share.envs)
        self.start()
        self.build()
        self.reset(seed_for(crew.config.seed, "restart", self.share.index, system.boundaries, self.share.restarts))

    def update(self) -> None:
        """Send the newest weights without waiting, unless it has them or the last ones are still under way.

        They overtake the calls of `ask`.
        """
        if self._has == self.version:
            return
        if self._updating is None or import_ray().wait([self._updating], timeout=0)[0]:
            call = self.handle.update.options(concurrency_group="weights")
            self._updating, self._has = call.remote(self.crew.weights()), self.version


class Crew:
    """All rollout workers of a run, and the weights that they act with."""

    system: System

    def __init__(self, config: RunConfig, note: Callable[[str], None]) -> None:
        self.config, self.note = config, note
        self.threads = torch.get_num_threads() if config.mode == "sync" else max(int(config.cluster.actor_cpus), 1)
        self.restarts = 0
        self.actors = [RemoteActor(self, share) for share in shares(config.env.num_envs, config.cluster.actors)]
        self._put: tuple[int, Any] | None = None  # version and reference of the weights in the object store

    def start(self) -> EnvSpec:
        """Start every worker and wait for its environments; returns their common spec."""
        ray = import_ray()
        waiting = {actor.start(): actor for actor in self.actors}
        specs: list[EnvSpec] = []
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=10.0)
            if not done:
                self.note(f"{len(specs)} of {len(self.actors)} workers are ready")
            for reference in done:
                actor = waiting.pop(reference)
                try:
                    specs.append(ray.get(reference))
                except Exception as error:
                    if not is_lost(error):
                        raise explained(error, f"worker {actor.share.index}") from None
                    actor.fruitless += 1
                    if actor.fruitless >= HOPELESS:
                        raise UserError(f"worker {actor.share.index} does not start: {error}") from None
                    waiting[actor.start()] = actor
        return specs[0]

    def build(self) -> None:
        """Let every worker build its parts, for the system's resolved configuration."""
        self.config = self.system.config
        self.actors[0].scale = self.system.return_scale.state_dict()
        for actor in self.actors:
            actor.build()

    def weights(self) -> Any:
        """A reference to the weights of the acting network."""
        version = self.actors[0].version
        if self._put is None or self._put[0] != version:
            arrays = [x.float() if x.dtype == torch.bfloat16 else x for x in _tensors(self.system.actor_network)]
            self._put = version, import_ray().put(Weights(version, [x.cpu().numpy() for x in arrays]))
        return self._put[1]

    def ready(self, timeout: float) -> list[RemoteActor]:
        """The workers whose oldest call is done, once there is one."""
        waiting = {actor.calls[0][0]: actor for actor in self.actors if actor.calls}
        if not waiting:
            time.sleep(timeout)
            return []
        wait = partial(import_ray().wait, list(waiting))
        if wait(timeout=timeout)[0]:
            return [waiting[reference] for reference in wait(num_returns=len(waiting), timeout=0)[0]]
        return []

    def stats(self) -> dict[str, Any]:
        """Metrics: how often a worker was replaced, and the slowest one with its steps per second."""
        speeds = {actor.share.index: actor.speed for actor in self.actors}
        slowest = min(speeds, key=lambda index: speeds[index])
        return {"worker_restarts": self.restarts, "slowest_worker": slowest, "slowest_worker_speed": speeds[slowest]}

    def close(self) -> None:
        """End every worker."""
        ray = import_ray()
        for actor in self.actors:
            if actor.handle is not None and ray.is_initialized():
                ray.kill(actor.handle)


def merged(moments: Sequence[dict[str, float]]) -> dict[str, float]:
    """Count, mean and sum of squared deviations of several samples together; those of one sample stay to the bit."""
    found = [each for each in moments if each["count"]]
    if not found:
        return dict(moments[0])
    count, mean, m2 = found[0]["count"], found[0]["mean"], found[0]["m2"]
    for each in found[1:]:
        total, shift = count + each["count"], each["mean"] - mean
        m2 += each["m2"] + shift**2 * count * each["count"] / total
        mean, count = mean + shift * each["count"] / total, total
    return {"count": count, "mean": mean, "m2": m2}


def _tensors(network: Network) -> list[torch.Tensor]:
    return [x.detach() for x in (*network.parameters(), *network.buffers())]
