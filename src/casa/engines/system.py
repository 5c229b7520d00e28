"""One run in memory: its parts, its counters, and the few things that the loops do with them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from casa.config.fields import RunConfig
from casa.engines.mailbox import Mailbox
from casa.engines.seeds import seed_for
from casa.envs.types import EnvSpec, VecEnv
from casa.learn.diagnostics import DIAGNOSTICS
from casa.learn.learner import Learner
from casa.nn import Network
from casa.rollout.actor import Actor, Episode
from casa.rollout.ring import Ring
from casa.rollout.samplers import Sample, Sampler
from casa.runtime.streams import on, synchronize


@dataclass(eq=False)
class System:
    """The parts that `build_system` makes from a configuration, and the run's counters; the loops drive it."""

    config: RunConfig
    """With nothing left open: every "auto" has its value."""
    device: torch.device
    envs: list[VecEnv]
    spec: EnvSpec
    network: Network
    """The learner's."""
    actor_network: Network
    """A copy that acts, in its own precision; it gets new weights through the mailbox."""
    mailbox: Mailbox
    learner: Learner
    ring: Ring
    sampler: Sampler
    actors: list[Actor]
    generator: torch.Generator
    """Draws the actions."""
    stream: torch.cuda.Stream | None
    """Where the actors work; None: in the current stream."""

    steps: int = 0
    """Agent steps taken."""
    episodes: int = 0
    boundaries: int = 0
    """Times that all episodes were cut and new ones started."""
    in_episodes: bool = False
    """Whether every environment is in an episode."""
    finished: deque[Episode] = field(default_factory=deque)
    """Episodes that nobody has taken notice of yet."""
    pulled_at: int = 0
    """`ticks` when the actors last got new weights."""

    @property
    def ticks(self) -> int:
        """Steps of one environment."""
        return self.steps // self.config.env.num_envs

    @property
    def progress(self) -> float:
        """Share of the run's agent steps that have been taken, 0..1."""
        return min(self.steps / self.config.steps, 1.0)

    def begin(self) -> None:
        """Start new episodes everywhere, with seeds of this boundary's own."""
        synchronize(self.device)
        with on(self.stream):
            for i, actor in enumerate(self.actors):
                index = self.boundaries * len(self.actors) + i
                actor.reset(seed_for(self.config.seed, "episodes", index))
        synchronize(self.device)
        self.in_episodes = True

    def cut(self, wait: bool = True) -> None:
        """End every running episode as a truncation: the state afterwards does not depend on the emulators'.

        First waits for the environments that run, unless they are broken. Where `begin` failed after the last cut,
        there is nothing to end: the open slots hold nothing yet.
        """
        if not self.in_episodes:
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
        self.in_episodes = False

    def absorb(self, actor: Actor) -> None:
        """Let an actor take in what came, and count it."""
        episodes = actor.absorb()
        self.steps += actor.steps_absorbed
        self.episodes += len(episodes)
        self.finished.extend(episodes)

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        return [self.finished.popleft() for _ in range(len(self.finished))]

    def pull_if_due(self, wait: bool) -> None:
        """Give the actors the newest published weights, every `learner.pull_every` steps of an environment.

        Without `wait`, weights that the learner's stream has not finished are left for later.
        """
        every = self.config.learner.pull_every
        if self.ticks // every > self.pulled_at // every and (wait or self.mailbox.ready()):
            self.pull()
            self.pulled_at = self.ticks

    def pull(self) -> None:
        """Give the actors the newest published weights."""
        if self.mailbox.version != self.actors[0].version:
            version = self.mailbox.pull(self.actor_network)
            for actor in self.actors:
                actor.version = version

    def learn(self, sample: Sample) -> dict[str, float]:
        """One learner step on a sample, and what follows from it: priorities, published weights; what to log."""
        log, measured = self.config.log, dict[str, float]()
        if log.diagnostics_every and self.learner.steps % log.diagnostics_every == 0:
            for name in log.diagnostics:
                measured |= DIAGNOSTICS[name](self.learner, sample.batch)
        result = self.learner.step(sample.batch, sample.weights, self.progress)
        if result.applied:  # the errors of a skipped step are no priorities
            self.sampler.update(sample, result.priorities)
        if self.learner.steps % self.config.learner.publish_every == 0:
            self.mailbox.publish(self.learner.steps)
        scalars = result.scalars
        lag = self.learner.steps - scalars.pop("version")
        return {**scalars, **measured, "policy_lag": lag} if result.applied else {}

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
            "episodes": self.episodes,
            "boundaries": self.boundaries,
            "begun": self.in_episodes,
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
        else:  # saved on another kind of device, whose random numbers cannot be continued here
            self.generator.manual_seed(seed_for(self.config.seed, "actions", meta["boundaries"]))
        if self.learner.target is not None:
            self.learner.target.load_state_dict(groups["target"])
        if "replay" in groups:
            self.ring.load_state_dict(groups["replay"]["ring"])
            self.sampler.load_state_dict(groups["replay"]["sampler"])
        self.steps, self.episodes = meta["steps"], meta["episodes"]
        self.boundaries, self.learner.steps = meta["boundaries"], meta["learner_steps"]
        self.learner.skipped = meta["skipped"]
        self.pulled_at = self.ticks
        for actor in self.actors:
            actor.version = meta["acting"]
        # Episodes that were running when it was saved cannot go on, since their emulators are gone: they end here.
        self.in_episodes = meta.get("begun", False)
        self.cut(wait=False)
