"""One run in memory: its parts, its counters, and the operations that the loops call."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from casa.config.fields import RunConfig
from casa.engines.mailbox import Mailbox
from casa.envs.gym import GymVec
from casa.envs.types import EnvSpec, VecEnv
from casa.learn.diagnostics import DIAGNOSTICS
from casa.learn.learner import Learner
from casa.nn import Network
from casa.rollout.actor import Actor, Episode
from casa.rollout.ring import Ring
from casa.rollout.samplers import PrioritizedSampler, Sample, Sampler
from casa.rollout.scale import ReturnScale
from casa.runtime.seeds import seed_for
from casa.runtime.streams import on, synchronize


@dataclass(eq=False)
class System:
    """The parts of a run, as built by `build_system`, and its counters. The loops drive it."""

    config: RunConfig
    """Resolved: every "auto" is replaced by a value."""
    device: torch.device
    envs: list[VecEnv]
    spec: EnvSpec
    network: Network
    """The learner's network."""
    actor_network: Network
    """The copy that acts, possibly in bf16. It gets new weights through the mailbox."""
    mailbox: Mailbox
    learner: Learner
    ring: Ring
    sampler: Sampler
    actors: list[Actor]
    generator: torch.Generator
    """Samples the actions."""
    return_scale: ReturnScale
    """The scale of returns that the actors have seen."""
    stream: torch.cuda.Stream | None
    """The actors' CUDA stream; None: the current stream."""

    steps: int = 0
    """Agent steps taken."""
    episodes: int = 0
    boundaries: int = 0
    """How often `cut` has truncated all running episodes."""
    in_episodes: bool = False
    """Whether episodes are running: set by `begin`, cleared by `cut`."""
    finished: deque[Episode] = field(default_factory=deque)
    """Finished episodes that `take_episodes` has not returned yet."""
    schedule: tuple[int, float] = (0, 1.0)
    """(agent step at which the linear decay starts, learning rate at that step as a fraction of its peak)."""
    pulled_at: int = 0
    """`ticks` at the actors' last pull."""
    abandoned: bool = False
    """Whether the environments are no longer waited for; see `abandon`."""

    @property
    def ticks(self) -> int:
        """Agent steps per environment."""
        return self.steps // self.config.env.num_envs

    @property
    def annealed(self) -> float:
        """How far the learning rate has decayed: 0 at its peak, always below 1, so that every update counts.

        Steps taken over all steps. A run resumed with another length decays linearly from its current
        rate.
        """
        data, total = self.config.data, self.config.steps
        updates = total * data.reuse / (data.batch * data.seq_len)
        start, left = self.schedule
        share = (self.steps - start) / max(total - start, 1)
        return min(share if left == 1 else 1 - left * (1 - share), 1 - 1 / (updates + 1))

    def anneal_from_here(self, left: float) -> None:
        """Decay the learning rate linearly from `left` times its peak to 0 over the remaining steps."""
        self.schedule = self.steps, left

    def begin(self) -> None:
        """Start new episodes in all environments, with seeds that depend on `boundaries`."""
        synchronize(self.device)
        with on(self.stream):
            for i, actor in enumerate(self.actors):
                index = self.boundaries * len(self.actors) + i
                actor.reset(seed_for(self.config.seed, "episodes", index))
        synchronize(self.device)
        self.in_episodes = True

    def cut(self, wait: bool = True) -> None:
        """Truncate every running episode: the system's state then no longer depends on the emulators' state.

        With `wait`, first receives the steps in flight; pass False if the environments are broken. Does nothing if no
        episodes are running, for example because `begin` failed after the last cut.
        """
        if not self.in_episodes:
            return
        wait = wait and not self.abandoned
        with on(self.stream):
            for actor in self.actors:
                while wait and actor.running:
                    self.absorb(actor)
        self.sampler.observe()
        synchronize(self.device)
        self.ring.cut(self.actors[0].version)
        synchronize(self.device)
        self.boundaries += 1
        self.in_episodes = False

    def absorb(self, actor: Actor) -> None:
        """Let an actor receive one step of a group, and count its steps and episodes."""
        episodes = actor.absorb()
        self.count(actor.steps_absorbed, episodes)

    def count(self, steps: int, episodes: list[Episode]) -> None:
        """Count agent steps, and the episodes that ended in them."""
        self.steps += steps
        self.episodes += len(episodes)
        self.finished.extend(episodes)

    def stats(self) -> dict[str, Any]:
        """Metrics of the data."""
        return self.sampler.stats()

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        return [self.finished.popleft() for _ in range(len(self.finished))]

    def pull_if_due(self, wait: bool) -> None:
        """Give the actors the latest published weights, every `learner.pull_every` steps per environment.

        Without `wait`, the pull is postponed while the learner's stream is still publishing.
        """
        every = self.config.learner.pull_every
        if self.ticks // every > self.pulled_at // every and (wait or self.mailbox.ready()):
            self.pull()
            self.pulled_at = self.ticks

    def pull(self) -> None:
        """Give the actors the latest published weights, if they are new."""
        if self.mailbox.version != self.actors[0].version:
            version = self.mailbox.pull(self.actor_network)
            for actor in self.actors:
                actor.version = version

    def learn(self, sample: Sample) -> dict[str, float]:
        """One learner step on a sample; updates priorities, publishes weights if due, returns the scalars to log."""
        log, agent, annealed, measured = self.config.log, self.config.agent, self.annealed, dict[str, float]()
        if log.diagnostics_every and self.learner.steps % log.diagnostics_every == 0:
            for name in log.diagnostics:
                measured |= DIAGNOSTICS[name](self.learner, sample.batch)
        if agent.reward_scale == "return":
            self.network.return_scale.fill_(self.return_scale.std)
        if self.network.tau_left is not None:
            self.network.tau_left.fill_(1 - (1 - agent.tau_decay) * annealed)
        if self.network.epsilon_left is not None:
            measured["epsilon_left"] = agent.epsilon_decay**annealed
            self.network.epsilon_left.fill_(measured["epsilon_left"])
        result = self.learner.step(sample.batch, sample.weights, annealed)
        if result.applied:  # a skipped step has no valid TD errors
            self.sampler.update(sample, result.priorities)
        if self.learner.steps % self.config.learner.publish_every == 0:
            self.mailbox.publish(self.learner.steps)
        scalars = result.scalars
        lag = self.learner.steps - scalars.pop("version")
        return {**scalars, **measured, "policy_lag": lag} if result.applied else {}

    def silent(self) -> tuple[float, list[int]]:
        """(how many seconds environments have not answered, which); those that were silent for longest."""
        longest, which, first = 0.0, list[int](), 0
        for env in self.envs:
            if isinstance(env, GymVec):
                seconds, found = env.silent()
                if seconds > longest:
                    longest, which = seconds, [first + index for index in found]
            first += env.spec.num_envs
        return longest, which

    def abandon(self) -> None:
        """Stop waiting for the environments: what they are doing is lost, everything else can be saved."""
        self.abandoned = True
        for env in self.envs:
            if isinstance(env, GymVec):
                env.abandon()

    def in_environment(self) -> bool:
        """Whether a thread is inside the code of an environment of this process."""
        return any(isinstance(env, GymVec) and env.inside_env for env in self.envs)

    def close(self) -> None:
        """Release the environments."""
        for env in self.envs:
            env.close()

    def state(self, with_replay: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """(tensors and random states by group, counters), as `load_state` takes them."""
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
            "episodes": self.episodes,
            "boundaries": self.boundaries,
            "begun": self.in_episodes,
            "learner_steps": self.learner.steps,
            "skipped": self.learner.skipped,
            "published": self.mailbox.version,
            "acting": self.actors[0].version,
            "return_scale": self.return_scale.state_dict(),
            "schedule": {"total": self.config.steps, "from": self.schedule, "annealed": self.annealed},
        }
        return groups, meta

    def load_state(self, groups: dict[str, Any], meta: dict[str, Any]) -> None:
        """Restore the result of `state`. Running episodes are truncated; without "replay" the ring starts empty."""
        self.network.load_state_dict(groups["model"])
        self.learner.optimizer.load_state_dict(groups["optimizer"])
        self.mailbox.load_state_dict(groups["actor"]["published"], meta["published"])
        self.actor_network.load_state_dict(groups["actor"]["acting"])
        random: Tensor = groups["actor"]["random"]
        if random.shape == self.generator.get_state().shape:
            self.generator.set_state(random.cpu())
        else:  # saved on another kind of device, whose random state does not fit here
            self.generator.manual_seed(seed_for(self.config.seed, "actions", meta["boundaries"]))
        if self.learner.target is not None:
            self.learner.target.load_state_dict(groups["target"])
        if "replay" in groups:
            self.ring.load_state_dict(groups["replay"]["ring"])
            self.sampler.load_state_dict(groups["replay"]["sampler"])
        elif isinstance(self.sampler, PrioritizedSampler):
            self.sampler.before = meta["steps"]
        self.steps, self.episodes = meta["steps"], meta["episodes"]
        self.boundaries, self.learner.steps = meta["boundaries"], meta["learner_steps"]
        self.learner.skipped = meta["skipped"]
        if "return_scale" in meta:
            self.return_scale.load_state_dict(meta["return_scale"])
        if "schedule" in meta:
            saved = meta["schedule"]
            self.schedule = tuple(saved["from"])
            if saved["total"] != self.config.steps:
                self.anneal_from_here(1 - saved["annealed"])
        self.pulled_at = self.ticks
        for actor in self.actors:
            actor.version = meta["acting"]
        # Truncate the episodes that were running at the save: their emulators no longer exist.
        self.in_episodes = meta.get("begun", False)
        self.cut(wait=False)
