"""A rollout worker: the local engine's actors with a ring of their own, in a process that needs no learner.

Nothing here needs Ray: `crew.py` runs one of these in each Ray actor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from casa.config import plugins
from casa.config.fields import RunConfig
from casa.engines.build import acting_copy, build_network, make_actors, make_envs, make_scale, ring_shape
from casa.engines.cluster.version import require_same_code
from casa.engines.resolve import GROUPS
from casa.envs import make_env
from casa.envs.types import Array, EnvSpec
from casa.errors import UserError
from casa.rollout.actor import Actor, Episode
from casa.rollout.ring import Ring, Slots
from casa.rollout.samplers import SLOTS_A_STEP
from casa.runtime.seeds import seed_for
from casa.runtime.threads import prepare


@dataclass(frozen=True)
class Share:
    """The part of a run that one worker plays: environments `first` to `first + count - 1`."""

    index: int
    first: int
    count: int
    restarts: int = 0
    """How often its predecessors were lost."""

    @property
    def envs(self) -> Array:
        """Its environments, which are columns of the learner's ring."""
        return np.arange(self.first, self.first + self.count)


class Weights(NamedTuple):
    """Parameters and buffers of the policy, and its version: the learner step at which it was published."""

    version: int
    arrays: list[Array]


class Rollout(NamedTuple):
    """What a worker sends: slots that follow those it sent before, and what happened in them."""

    slots: Slots
    steps: int
    episodes: list[Episode]
    seconds: dict[str, float]
    """Since it started, by stage."""
    scale: dict[str, float]
    """Moments of the returns that it has seen."""


def shares(num_envs: int, actors: int) -> list[Share]:
    """Nearly equal, contiguous shares of the environments."""
    edges = [num_envs * i // actors for i in range(actors + 1)]
    return [Share(i, edges[i], edges[i + 1] - edges[i]) for i in range(actors)]


class RolloutWorker:
    """Plays its share of the environments. First `make_envs`, then `build`, `reset` and any number of `collect`."""

    def __init__(self) -> None:
        self._newest: Weights | None = None

    def make_envs(self, config: RunConfig, share: Share, code: str, threads: int) -> EnvSpec:
        """Make the environments and return their spec; UserError if this node has other code than the learner.

        `threads`: of PyTorch. The number may change rounding, so `sync` needs the learner's.
        """
        require_same_code(code)
        plugins.load(config.plugins, trust=True)
        self.share, self.groups = share, GROUPS[config.mode]
        self.device = torch.device("cuda" if config.cluster.actor_gpus else "cpu")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"cluster.actor_gpus is {config.cluster.actor_gpus:g}, but torch finds no GPU on its node")
        prepare(config.mode, self.device)
        torch.set_num_threads(threads)
        env = replace(config.env, num_envs=share.count)
        if not env.threads:
            env = replace(env, threads=max(int(config.cluster.actor_cpus), 1))
        own = replace(config, env=env)
        self.envs = make_envs(own, self.groups, make_env, first=share.index * self.groups)
        return self.envs[0].spec

    def build(self, config: RunConfig, boundaries: int, scale: dict[str, float]) -> None:
        """Build network, ring and actors of the resolved configuration. `scale`: moments seen by a predecessor."""
        share, spec, data = self.share, self.envs[0].spec, config.data
        self.mode = config.mode
        if self.device.type != config.device:  # these were resolved for the learner's device
            config = replace(config, precision="fp32", compile="no")
        self.network = acting_copy(build_network(config, spec).to(self.device), config)
        self.longest = SLOTS_A_STEP * data.seq_len
        capacity = data.seq_len * (SLOTS_A_STEP + 1) + 2 * SLOTS_A_STEP + spec.frame_stack
        shape = replace(
            ring_shape(config, spec, self.network),
            num_envs=share.count,
            capacity=-(-capacity // data.seq_len) * data.seq_len,
        )
        self.ring = Ring(shape, self.device)
        again = (boundaries, share.restarts) if boundaries or share.restarts else ()
        generator = torch.Generator(self.device).manual_seed(seed_for(config.seed, "actions", share.index, *again))
        self.scale = make_scale(config, share.count)
        self.scale.load_state_dict(scale)
        self.actors = make_actors(config, self.envs, self.network, self.ring, generator, self.scale, share.first)

    def reset(self, seed: int, written: Array, weights: Weights) -> None:
        """Start new episodes with these weights; the ring goes on where the learner's ends, at slots `written`."""
        self.ring.rewind(written)
        self._sent = np.array(written)
        self._newest = weights
        for i, actor in enumerate(self.actors):
            actor.reset(seed_for(seed, "episodes", i) if i else seed)

    def update(self, weights: Weights) -> None:
        """Use these weights from the next step on. May be called from another thread."""
        self._newest = weights

    def collect(self, slots: int, weights: Weights | None = None) -> Rollout:
        """Play until at least `slots` more slots are closed, and return them."""
        if weights is not None:
            self._newest = weights
        steps, episodes = 0, list[Episode]()

        def absorb(actor: Actor) -> None:
            nonlocal steps
            episodes.extend(actor.absorb())
            steps += actor.steps_absorbed

        while True:
            self._use_newest()
            for actor in self.actors:
                # As in the local loops: sync leaves nothing in flight; async receives one group while others step.
                if self.mode == "async" and actor.running and not actor.awaiting_actions:
                    absorb(actor)
                actor.act()
            for actor in self.actors if self.mode == "sync" else ():
                absorb(actor)
            more = self.ring.written - self._sent
            if more.sum() >= slots or more.max() >= self.longest:
                return self._take(steps, episodes)

    def _take(self, steps: int, episodes: list[Episode]) -> Rollout:
        slots = self.ring.take_since(self._sent)
        self._sent = slots.written
        stages = self.actors[0].clock.seconds
        seconds = {stage: sum(actor.clock.seconds[stage] for actor in self.actors) for stage in stages}
        mine = [episode._replace(env=self.share.first + episode.env) for episode in episodes]
        return Rollout(slots, steps, mine, seconds, self.scale.state_dict())

    @torch.no_grad()
    def _use_newest(self) -> None:
        weights, self._newest = self._newest, None
        if weights is None or weights.version < self.actors[0].version:  # two threads: the older may come last
            return
        mine = [*self.network.parameters(), *self.network.buffers()]
        for x, new in zip(mine, weights.arrays, strict=True):
            x.copy_(torch.tensor(new))
        for actor in self.actors:
            actor.version = weights.version
