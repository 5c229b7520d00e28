"""Throughput of the stages of a run, each alone and all together, in comparable units.

Every stage runs the training code: the actor and the learner of a `System`. Stages other than emulation use
environments with constant observations.
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
"""A number of agent steps that no benchmark reaches."""
COHORTS = 4
"""Sequences per environment that a window of the loop covers, within `STRETCH` times the requested time."""
STRETCH = 5
PATIENCE = 1.0
"""Seconds that the learner has to catch up; after that it is considered the bottleneck."""
UNTIL_STEADY = 5
"""Warm-up calls, until the caches are warm and the CUDA graphs are captured."""


def endless(config: RunConfig) -> RunConfig:
    """The same run without a step limit, where learning starts after at most two sequences per environment."""
    least = 2 * config.env.num_envs * (config.data.burn_in + config.data.seq_len)
    data = replace(config.data, min_fill=min(config.data.min_fill, least))
    return replace(config, steps=FOREVER, data=data)


def rate(work: Callable[[], int], seconds: float, device: torch.device) -> float:
    """Σ work() / elapsed time: call `work` repeatedly for `seconds`, at least once; units of work per second."""
    synchronize(device)
    done, began = 0, time.perf_counter()
    while True:
        done += work()
        if time.perf_counter() - began >= seconds:
            synchronize(device)
            return done / (time.perf_counter() - began)


class Emulation:
    """Emulation alone: a loop's environments with uniformly random actions, each sent as soon as one is ready.

    The loop must be paused. The random steps interrupt its episodes, which does no harm, since nothing is kept. A
    policy that plays longer episodes resets less often, so the loop can be slightly faster than this.
    """

    def __init__(self, actors: list[Actor], seed: int = 0) -> None:
        self.actors, self.rng = actors, np.random.default_rng(seed)

    def measure(self, seconds: float) -> float:
        """Steps/s."""
        for _ in range(max(len(actor.columns) // actor.group_size for actor in self.actors)):
            self.step()  # drain the environments that are already done before the clock starts
        return rate(self.step, seconds, torch.device("cpu"))

    def step(self) -> int:
        """Step one group of every actor's environments; returns the number of steps."""
        return sum(self._step(actor) for actor in self.actors)

    def play(self, steps: int) -> Array:
        """Observations [N, *obs_shape] of all environments after about `steps` random steps each."""
        seen: dict[int, Array] = {}
        total = sum(len(actor.columns) for actor in self.actors)
        taken = 0
        while taken < steps * total or len(seen) < total:
            for actor in self.actors:
                taken += self._step(actor, seen)
        return np.stack([seen[i] for i in range(total)])

    def _step(self, actor: Actor, seen: dict[int, Array] | None = None) -> int:
        """Receive one group and store its observations in `seen`; the number of running environments is unchanged."""
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
    """N environments that always return the same observations, so that only the agent's own cost is measured."""

    ids: Array | None = None

    def __init__(self, spec: EnvSpec, obs: Array) -> None:
        self.spec, self.obs = spec, obs
        no = np.zeros(spec.num_envs, np.bool_)
        self._step = StepBatch(obs, np.zeros(spec.num_envs, np.float32), no, no, no, {})

    def reset(self, seed: int | None = None) -> Array:
        """The constant observations."""
        return self.obs

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Do nothing."""

    def recv(self) -> StepBatch:
        """The constant observations, with reward 0 and no episode end."""
        return self._step

    def close(self) -> None:
        """Nothing to free."""


class Alone:
    """Inference, writing to the ring and learning, each alone, on a system with constant environments."""

    def __init__(self, config: RunConfig, spec: EnvSpec, obs: Array, compiled: bool = False) -> None:
        spec = replace(spec, num_envs=len(obs), group_size=0)
        config = replace(endless(config), env=replace(config.env, group_size=0))
        constant = ConstantVec(spec, obs)
        self.system = build_system(config, env_factory=lambda env, count, seed: constant, compiled=compiled)
        self.device, self.actor = self.system.device, self.system.actors[0]
        self.system.begin()
        self.actor.act()
        # Fill the ring, as in the middle of a run: no slot has been overwritten yet, and all may be sampled.
        while not self.system.ring.oldest(ahead=SLOTS_A_STEP).any():
            self.actor.absorb()
        self.system.sampler.observe()
        self._full = self.system.sampler.state_dict()
        for _ in range(UNTIL_STEADY):
            self.actor.act()
            self.learn()

    def facts(self) -> dict[str, Any]:
        """Properties for the report: size and precision of the network, frames per step."""
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
        """Steps/s of inference on one batch of all environments, including action sampling."""

        def work() -> int:
            self.actor.act()
            return len(self.actor.columns)

        return rate(work, seconds, self.device)

    def write(self, seconds: float) -> float:
        """Steps/s of writing transitions and frames to the ring."""

        def work() -> int:
            self.actor.absorb()
            return len(self.actor.columns)

        written = self.system.ring.written.copy()
        found = rate(work, seconds, self.device)
        self.system.ring.rewind(written)  # keep the sampler's indices valid
        return found

    def train(self, seconds: float) -> float:
        """Trained frames/s of sampling, gather and learner steps together."""
        return rate(self.learn, seconds, self.device)

    def learn(self) -> int:
        """One learner step; an exhausted sampler restarts from the full ring. Returns the trained frames."""
        sampler, data = self.system.sampler, self.system.config.data
        if not sampler.ready():
            sampler.load_state_dict(self._full)
        self.system.learn(sampler.next())
        return data.batch * data.seq_len


class EndToEnd:
    """The training loop, run in measurement windows and paused between them."""

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
        """Run for at least two turns of the learner and at least `seconds`."""
        with self._running():
            began = time.perf_counter()
            turns = 0
            while turns < 2 or time.perf_counter() - began < seconds:
                self._turn()
                turns += 1

    def measure(self, seconds: float) -> float:
        """Agent steps/s = trained frames/s / reuse, between the ends of two turns of the learner.

        Environments in lockstep complete their sequences together, so learning comes in bursts, and a window that cut
        a burst would be biased. The window is therefore extended to cover `COHORTS` sequences per environment, but to
        at most `STRETCH` times `seconds`.
        """
        data = self.system.config.data
        least = COHORTS * self.system.config.env.num_envs * data.reuse / data.batch
        with self._running():
            first, began = self._turn()
            self.meter.row()  # restart the averages
            updates, now = first, began
            while now - began < seconds or (updates - first < least and now - began < STRETCH * seconds):
                updates, now = self._turn()
            self.row = self.meter.row()
        return (updates - first) * data.batch * data.seq_len / data.reuse / (now - began)

    def advance(self, learner_steps: int) -> int:
        """Run for at least `learner_steps`; returns the number of learner steps done."""
        learner = self.system.learner
        with self._running():
            first = learner.steps
            while learner.steps < first + learner_steps:
                next(self._items)
            synchronize(self.system.device)
            return learner.steps - first

    def close(self) -> None:
        """Stop the loop's thread and close the environments."""
        self._held.close()
        if isinstance(self._items, Generator):
            self._items.close()
        self.system.close()

    def _running(self) -> ExitStack:
        """A context in which the loop runs; it is paused again on exit."""
        self._held.close()
        window = ExitStack()
        window.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(self.threads)
        window.callback(lambda: self._held.enter_context(self.loop.paused()))
        return window

    def _turn(self) -> tuple[int, float]:
        """Run until the learner has caught up or `PATIENCE` has passed; returns (learner steps so far, time)."""
        began = time.perf_counter()
        while True:
            progress = next(self._items)
            self.meter.add(progress.episodes, progress.updates)
            late = time.perf_counter() - began > PATIENCE
            if progress.updates and (late or not self.system.sampler.ready()):
                synchronize(self.system.device)
                return self.system.learner.steps, time.perf_counter()
