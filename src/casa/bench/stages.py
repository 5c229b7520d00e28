"""The stages of a run, each alone and all together, as rates that can be compared.

Every stage is the code that training runs: the actor and the learner of a `System`, on an environment that stands
still where emulation is not what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from casa.config.fields import RunConfig
from casa.engines.build import EnvFactory, build_system
from casa.engines.loops import LOOPS, Loop
from casa.engines.resolve import GROUPS
from casa.envs.types import Array, EnvSpec, StepBatch
from casa.rollout.actor import Actor
from casa.rollout.samplers import SLOTS_A_STEP
from casa.run.metrics import Meter
from casa.runtime.resources import pick_device
from casa.runtime.streams import synchronize
from casa.runtime.threads import prepare

FOREVER = 10**12
"""Agent steps of a run that no benchmark reaches."""
COHORTS = 4
"""Sequences of every environment that a window of the loop holds, unless it is `STRETCH` times as long as asked."""
STRETCH = 5
PATIENCE = 1.0
"""Seconds after which a learner that never catches up is taken to be the bottleneck."""
UNTIL_STEADY = 5
"""Calls until the optimizer has its moments and what is a graph on CUDA has been recorded."""


def endless(config: RunConfig) -> RunConfig:
    """The same run without an end, and with learning that begins after two sequences of every environment."""
    least = 2 * config.env.num_envs * (config.data.burn_in + config.data.seq_len)
    data = replace(config.data, min_fill=min(config.data.min_fill, least))
    return replace(config, steps=FOREVER, data=data)


def rate(work: Callable[[], int], seconds: float, device: torch.device) -> float:
    """Σ work() / time: how much is done a second, by as many calls as `seconds` hold, at least one."""
    synchronize(device)
    done, began = 0, time.perf_counter()
    while True:
        done += work()
        if time.perf_counter() - began >= seconds:
            synchronize(device)
            return done / (time.perf_counter() - began)


class Emulation:
    """A loop's own environments with uniformly random actions, each sent on as soon as it comes.

    A policy that plays longer games resets less often, so a loop can be a little faster than this. The loop must be
    held. Its episodes then have seams, where random actions were played: nothing that is kept.
    """

    def __init__(self, actors: list[Actor], seed: int = 0) -> None:
        self.actors, self.rng = actors, np.random.default_rng(seed)

    def measure(self, seconds: float) -> float:
        """Steps/s."""
        for _ in range(max(len(actor.columns) // actor.group_size for actor in self.actors)):
            self.step()  # those that were ready before the clock starts do not count
        return rate(self.step, seconds, torch.device("cpu"))

    def step(self) -> int:
        """One batch of every actor's environments; how many steps that were."""
        return sum(self._step(actor) for actor in self.actors)

    def play(self, steps: int) -> Array:
        """The observations of all environments after some steps of each."""
        seen: dict[int, Array] = {}
        total = sum(len(actor.columns) for actor in self.actors)
        taken = 0
        while taken < steps * total or len(seen) < total:
            for actor in self.actors:
                taken += self._step(actor, seen)
        return np.stack([seen[i] for i in range(total)])

    def _step(self, actor: Actor, seen: dict[int, Array] | None = None) -> int:
        """Take what comes next, keep it in `seen` by environment; as many run afterwards as before."""
        send = actor.env.spec.actions.random(self.rng, actor.group_size)
        if not actor.running:
            actor.env.send(send)
        obs = actor.env.recv().obs
        if seen is not None:
            seen |= zip(actor.columns[actor.env_ids()].tolist(), obs.copy(), strict=True)
        if actor.running:
            actor.env.send(send)
        return len(obs)


class ConstantVec:
    """N environments that give the same observations for ever: what is left is the agent's own cost."""

    ids: Array | None = None

    def __init__(self, spec: EnvSpec, obs: Array) -> None:
        self.spec, self.obs = spec, obs
        no = np.zeros(spec.num_envs, np.bool_)
        self._step = StepBatch(obs, np.zeros(spec.num_envs, np.float32), no, no, no, {})

    def reset(self, seed: int | None = None) -> Array:
        """The observations."""
        return self.obs

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Nothing moves."""

    def recv(self) -> StepBatch:
        """The observations, no reward, no end."""
        return self._step

    def close(self) -> None:
        """Nothing to free."""


class Alone:
    """Inference, writing and learning, each alone, on a system whose environments stand still."""

    def __init__(self, config: RunConfig, spec: EnvSpec, obs: Array, compiled: bool = False) -> None:
        spec = replace(spec, num_envs=len(obs), group_size=0)
        config = replace(endless(config), env=replace(config.env, group_size=0))
        constant = ConstantVec(spec, obs)
        self.system = build_system(config, env_factory=lambda env, count, seed: constant, compiled=compiled)
        self.device, self.actor = self.system.device, self.system.actors[0]
        self.system.begin()
        self.actor.act()
        # A full ring, as in the middle of a run: nothing has been overwritten, everything may be sampled.
        while not self.system.ring.oldest(ahead=SLOTS_A_STEP).any():
            self.actor.absorb()
        self.system.sampler.observe()
        self._full = self.system.sampler.state_dict()
        for _ in range(UNTIL_STEADY):
            self.actor.act()
            self.learn()

    def facts(self) -> dict[str, Any]:
        """What was measured: size and precision of the network, frames of a step."""
        network = self.system.network
        return {
            "network": {
                "backbone": self.system.config.net.backbone,
                "parameters": sum(p.numel() for p in network.parameters()),
                "precision": self.system.config.precision,
            },
            "frames_per_step": self.system.spec.frames_per_step,
        }

    def infer(self, seconds: float) -> float:
        """Steps/s of the network on one batch of all environments, with the draw of the actions."""

        def work() -> int:
            self.actor.act()
            return len(self.actor.columns)

        return rate(work, seconds, self.device)

    def write(self, seconds: float) -> float:
        """Steps/s of putting transitions and frames into the ring."""

        def work() -> int:
            self.actor.absorb()
            return len(self.actor.columns)

        written = self.system.ring.written.copy()
        found = rate(work, seconds, self.device)
        self.system.ring.rewind(written)  # what the sampler knows stays true
        return found

    def train(self, seconds: float) -> float:
        """Trained frames/s of sampling, gathering and learner steps."""
        return rate(self.learn, seconds, self.device)

    def learn(self) -> int:
        """One learner step; the sampler starts again from the full ring where it has run out."""
        sampler, data = self.system.sampler, self.system.config.data
        if not sampler.ready():
            sampler.load_state_dict(self._full)
        self.system.learn(sampler.next())
        return data.batch * data.seq_len


class EndToEnd:
    """The loop that training runs, in windows; between them nothing moves."""

    def __init__(self, config: RunConfig, mode: str, env_factory: EnvFactory) -> None:
        prepare(mode, pick_device(config.device))
        self.threads = torch.get_num_threads()
        self.system = build_system(endless(config), GROUPS[mode], env_factory=env_factory)
        self.loop: Loop = LOOPS[mode](self.system)
        self.meter = Meter(self.system, self.loop)
        self.system.begin()
        self._items = iter(self.loop)
        self._held = ExitStack()
        self.row: dict[str, Any] = {}

    def warm_up(self, seconds: float) -> None:
        """Run until the learner has had two turns, and for so long at least."""
        with self._running():
            began = time.perf_counter()
            turns = 0
            while turns < 2 or time.perf_counter() - began < seconds:
                self._turn()
                turns += 1

    def measure(self, seconds: float) -> float:
        """Agent steps/s = trained frames/s / reuse, from the end of one turn of the learner to the end of another.

        Environments in step complete their sequences together, so learning comes in bursts; a window that cut one
        in two would be wrong by as much. Where `seconds` are short it lasts longer, for `COHORTS` sequences of every
        environment, up to `STRETCH` times as long.
        """
        data = self.system.config.data
        least = COHORTS * self.system.config.env.num_envs * data.reuse / data.batch
        with self._running():
            first, began = self._turn()
            self.meter.row()  # the means start here
            updates, now = first, began
            while now - began < seconds or (updates - first < least and now - began < STRETCH * seconds):
                updates, now = self._turn()
            self.row = self.meter.row()
        return (updates - first) * data.batch * data.seq_len / data.reuse / (now - began)

    def advance(self, learner_steps: int) -> int:
        """Run for so many learner steps at least; how many they were."""
        learner = self.system.learner
        with self._running():
            first = learner.steps
            while learner.steps < first + learner_steps:
                next(self._items)
            synchronize(self.system.device)
            return learner.steps - first

    def close(self) -> None:
        """End the loop's thread and the environments."""
        self._held.close()
        if isinstance(self._items, Generator):
            self._items.close()
        self.system.close()

    def _running(self) -> ExitStack:
        """Let the loop go; hold it again at the end."""
        self._held.close()
        window = ExitStack()
        window.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(self.threads)
        window.callback(lambda: self._held.enter_context(self.loop.paused()))
        return window

    def _turn(self) -> tuple[int, float]:
        """Learner steps so far and the time, when the learner has caught up or is known never to."""
        began = time.perf_counter()
        while True:
            progress = next(self._items)
            self.meter.add(progress.episodes, progress.updates)
            late = time.perf_counter() - began > PATIENCE
            if progress.updates and (late or not self.system.sampler.ready()):
                synchronize(self.system.device)
                return self.system.learner.steps, time.perf_counter()
