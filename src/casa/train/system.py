"""One training run's parts, put together from its configuration: environments, ring, actors, sampler, learner."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from casa.config import backbone_for
from casa.envs import make_env
from casa.envs.config import EnvConfig
from casa.envs.names import resolve
from casa.envs.types import EnvSpec, VecEnv
from casa.errors import UserError
from casa.nn import Network
from casa.rollout.actor import Actor, Episode
from casa.rollout.behaviour import draw_epsilons
from casa.rollout.ring import Ring, RingShape
from casa.rollout.samplers import SLOTS_A_STEP, FifoSampler, PrioritizedSampler, Sample, Sampler
from casa.rollout.streams import on, side_stream, synchronize
from casa.schema import RunConfig
from casa.train.learner import Learner
from casa.train.mailbox import Mailbox
from casa.train.process import nicely
from casa.train.resources import pick_bf16, pick_compile, pick_device, pick_parts, pick_workers, require_memory

Note = Callable[[str], None]
EnvFactory = Callable[[EnvConfig, int, int], VecEnv]


class System:
    """Everything that a run needs in memory, and its counters; the loops in `loops.py` drive it."""

    def __init__(
        self,
        config: RunConfig,
        groups: int = 1,
        note: Note = lambda text: None,
        env_factory: EnvFactory = make_env,
        compiled: bool | None = None,
    ) -> None:
        self.config = config
        self.device = pick_device(config.device)
        overlap = groups > 1  # acting and learning, each in a stream of its own
        # ALE gives out those that are ready first; others come in groups that take turns.
        atari = env_factory is make_env and resolve(config.env.id).kind == "atari"
        if config.env.batch and not atari:
            raise UserError(f"env.batch {config.env.batch} is for Atari; {config.env.id} is served as a whole, use 0")
        if groups > 1 and atari:
            env_factory = partial(make_env, batch=config.env.num_envs // pick_parts(config.env, groups))
            groups = 1
        note(f"starting {config.env.num_envs} environments")
        per_group = _split(config.env.num_envs, groups)
        self.envs = self._make_envs(env_factory, per_group)
        self.spec = self.envs[0].spec
        self.bf16 = pick_bf16(config, self.device, backbone_for(config, self.spec.kind))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_for("network"))
            self.network = build_network(config, self.spec).to(self.device)
        self.stream = side_stream(self.device) if overlap else None
        self.mailbox = Mailbox(self.network)
        self.actor_network = copy.deepcopy(self.network).requires_grad_(False)
        if self.bf16:
            self.actor_network = self.actor_network.bfloat16()
        if compiled is None:
            compiled = pick_compile(config, self.device, backbone_for(config, self.spec.kind), overlap)
        self.compiled = compiled
        if self.compiled:
            note("the network is compiled when it is first used, which takes up to a minute")
            self.actor_network.backbone.compile(dynamic=False)
        workers = pick_workers(config, self.device, backbone_for(config, self.spec.kind), overlap)
        self.learner = Learner(self.network, config, self.bf16, self.compiled, workers)
        shape = self._ring_shape()
        note(require_memory(shape.bytes, self.device, "the trajectory ring"))
        self.ring = Ring(shape, self.device)
        self.sampler = self._make_sampler()
        self.actors = self._make_actors(per_group)
        self.steps = 0  # agent steps taken
        self.ticks = 0  # steps of one environment
        self.episodes = 0
        self.finished: deque[Episode] = deque()  # episodes that nobody has taken notice of yet
        self.boundaries = 0  # times that all episodes were cut and begun anew
        self.begun = False  # whether every environment is in an episode

    def _make_envs(self, env_factory: EnvFactory, per_group: list[int]) -> list[VecEnv]:
        def make() -> list[VecEnv]:
            counts = enumerate(per_group)
            return [env_factory(self.config.env, count, self.seed_for("group", i)) for i, count in counts]

        # The emulators' threads fill every core, and the few threads that feed them and learn must not wait for them.
        return nicely(make)

    def seed_for(self, purpose: str, index: int = 0) -> int:
        """A 31-bit seed that depends on the run's seed, the purpose and an index, and on nothing else."""
        words = [self.config.seed, *purpose.encode(), index]
        return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)

    def _ring_shape(self) -> RingShape:
        data, spec, envs = self.config.data, self.spec, self.config.env.num_envs
        length = data.burn_in + data.seq_len
        if data.kind == "prioritized":
            least = length + data.seq_len + SLOTS_A_STEP + spec.frame_stack  # a whole sequence is always there
            capacity = max(-(-data.replay_frames // envs), least)
        else:
            # A sequence waits until a whole batch is there: as long as the slowest environments, at one slot a
            # step, take to fill it, while a fast one writes on; one more block for the actor to be ahead.
            waiting = -(-data.batch // (envs * data.reuse))
            capacity = length + SLOTS_A_STEP * (data.seq_len * (waiting + 1) + 3) + spec.frame_stack
        stacked = spec.frame_stack > 1
        return RingShape(
            capacity=-(-capacity // data.seq_len) * data.seq_len,
            num_envs=envs,
            frame_shape=spec.obs_shape[1:] if stacked else spec.obs_shape,
            frame_dtype=torch.uint8 if spec.obs_dtype == np.uint8 else torch.float32,
            stack=spec.frame_stack,
            state_size=2 * self.config.net.lstm,
            state_every=data.seq_len,
        )

    def _make_sampler(self) -> Sampler:
        data = self.config.data
        rng = np.random.default_rng(self.seed_for("sampler"))
        if data.kind == "prioritized":
            return PrioritizedSampler(
                self.ring,
                seq_len=data.seq_len,
                burn_in=data.burn_in,
                batch=data.batch,
                reuse=data.reuse,
                exponent=data.priority_exponent,
                importance=data.importance_exponent,
                min_fill=data.min_fill,
                rng=rng,
            )
        return FifoSampler(
            self.ring, seq_len=data.seq_len, burn_in=data.burn_in, batch=data.batch, reuse=data.reuse, rng=rng
        )

    def _make_actors(self, per_group: list[int]) -> list[Actor]:
        agent = self.config.agent
        rng = np.random.default_rng(self.seed_for("epsilon"))
        epsilons = draw_epsilons(self.config.env.num_envs, agent.epsilon_base, *agent.epsilon_range, rng)
        epsilons = epsilons[torch.as_tensor(rng.permutation(len(epsilons)))]
        self.generator = torch.Generator(self.device).manual_seed(self.seed_for("actions"))
        actors, first = [], 0
        for env, count in zip(self.envs, per_group, strict=True):
            columns = np.arange(first, first + count)
            actors.append(
                Actor(
                    env,
                    self.actor_network,
                    self.ring,
                    columns,
                    agent.behaviour,
                    epsilons[columns],
                    self.generator,
                )
            )
            first += count
        return actors

    @property
    def progress(self) -> float:
        """Share of the run's agent steps that have been taken, 0..1."""
        return min(self.steps / self.config.steps, 1.0)

    def begin(self) -> None:
        """Start new episodes everywhere, with seeds of this boundary's own."""
        synchronize(self.device)
        with on(self.stream):
            for i, actor in enumerate(self.actors):
                actor.reset(self.seed_for("episodes", self.boundaries * len(self.actors) + i))
        synchronize(self.device)
        self.begun = True

    def cut(self, wait: bool = True) -> None:
        """End every running episode as a truncation: the state afterwards does not depend on the emulators'.

        First waits for the environments that run, unless they are broken. Where `begin` failed after the last cut,
        there is nothing to end: the open slots hold nothing yet.
        """
        if not self.begun:
            return
        with on(self.stream):
            for actor in self.actors:
                while wait and actor.running:
                    self.absorb(actor)
        self.sampler.observe()
        synchronize(self.device)
        self.ring.cut(self.actors[0].version)
        synchronize(self.device)
        self.boundaries += 1
        self.begun = False

    def absorb(self, actor: Actor) -> None:
        """Let an actor take in what came, and count it."""
        episodes = actor.absorb()
        self.steps += actor.taken
        self.episodes += len(episodes)
        self.finished.extend(episodes)

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        return [self.finished.popleft() for _ in range(len(self.finished))]

    def pull(self) -> None:
        """Give the actors the newest published weights."""
        if self.mailbox.version != self.actors[0].version:
            version = self.mailbox.pull(self.actor_network)
            for actor in self.actors:
                actor.version = version

    def learn(self, sample: Sample, lock: AbstractContextManager[Any] | None = None) -> dict[str, float]:
        """One learner step on a sample, and what follows from it: priorities, published weights; what to log.

        `lock` guards the sampler where another thread uses it too.
        """
        every = self.config.log.angles_every
        angles = self.learner.angles(sample.batch) if every and self.learner.steps % every == 0 else {}
        result = self.learner.step(sample.batch, sample.weights, self.progress)
        if result.applied:  # the errors of a skipped step are no priorities
            with lock or nullcontext():
                self.sampler.update(sample.leaves, result.priorities)
        if self.learner.steps % self.config.learner.publish_every == 0:
            self.mailbox.publish(self.learner.steps)
        scalars = result.scalars
        lag = self.learner.steps - scalars.pop("version")
        return {**scalars, **angles, "policy_lag": lag} if result.applied else {}

    def close(self) -> None:
        """Release the environments."""
        for env in self.envs:
            env.close()

    def state(self, with_replay: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """(tensors by group, counters and random states) that `load_state` restores."""
        groups: dict[str, Any] = {
            "model": self.network.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "actor": {
                "published": self.mailbox.state_dict(),
                "acting": self.actor_network.state_dict(),
                "random": self.generator.get_state(),
            },
        }
        if self.learner.target is not None:
            groups["target"] = self.learner.target.state_dict()
        if with_replay:
            groups["replay"] = {"ring": self.ring.state_dict(), "sampler": self.sampler.state_dict()}
        meta = {
            "steps": self.steps,
            "ticks": self.ticks,
            "episodes": self.episodes,
            "boundaries": self.boundaries,
            "begun": self.begun,
            "learner_steps": self.learner.steps,
            "skipped": self.learner.skipped,
            "published": self.mailbox.version,
            "acting": self.actors[0].version,
        }
        return groups, meta

    def load_state(self, groups: dict[str, Any], meta: dict[str, Any]) -> None:
        """Continue from what `state` gave, with new episodes; without "replay" the ring starts empty."""
        self.network.load_state_dict(groups["model"])
        self.learner.optimizer.load_state_dict(groups["optimizer"])
        self.mailbox.load_state_dict(groups["actor"]["published"], meta["published"])
        self.actor_network.load_state_dict(groups["actor"]["acting"])
        random: Tensor = groups["actor"]["random"]
        if random.shape == self.generator.get_state().shape:
            self.generator.set_state(random.cpu())
        else:  # of another kind of device, whose random numbers this one cannot continue
            self.generator.manual_seed(self.seed_for("actions", meta["boundaries"]))
        if self.learner.target is not None:
            self.learner.target.load_state_dict(groups["target"])
        if "replay" in groups:
            self.ring.load_state_dict(groups["replay"]["ring"])
            self.sampler.load_state_dict(groups["replay"]["sampler"])
        self.steps, self.ticks, self.episodes = meta["steps"], meta["ticks"], meta["episodes"]
        self.boundaries, self.learner.steps = meta["boundaries"], meta["learner_steps"]
        self.learner.skipped = meta["skipped"]
        for actor in self.actors:
            actor.version = meta["acting"]
        # Where it was saved in the middle of episodes, their emulators are gone: they end here.
        self.begun = meta.get("begun", False)
        self.cut(wait=False)


def build_network(config: RunConfig, spec: EnvSpec) -> Network:
    """The network of a configuration for environments of this kind, on the CPU, with new weights."""
    try:
        network = Network(
            spec.obs_shape,
            spec.num_actions,
            backbone=backbone_for(config, spec.kind),
            lstm=config.net.lstm,
            head=config.agent.head,
            tau=config.agent.tau,
            hidden=config.net.hidden,
        )
    except ValueError as error:  # an image that is too small for the backbone
        raise UserError(str(error)) from None
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _split(total: int, groups: int) -> list[int]:
    """`total` environments in `groups` nearly equal, non-empty parts."""
    groups = min(groups, total)
    return [total // groups + (i < total % groups) for i in range(groups)]
