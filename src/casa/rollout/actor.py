"""Steps a vector env: one inference per group, send the actions, write the transitions to the ring."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from casa.envs.types import Array, VecEnv
from casa.heads import HeadOutput
from casa.nn import Network
from casa.rollout.behaviour import BEHAVIOURS
from casa.rollout.ring import Ring
from casa.rollout.scale import ReturnScale
from casa.rollout.writer import StepWriter
from casa.runtime.compiled import Compiled
from casa.runtime.stopwatch import Stopwatch
from casa.runtime.streams import Graphed, Readback

HowCompiled = Literal["no", "yes", "try"]
"""Whether inference is one compiled graph on a CPU; try: if the compiler works."""


class Episode(NamedTuple):
    """A finished episode: its environment, raw return, and length in agent steps."""

    env: int
    score: float
    length: int


class Actor:
    """o_t -> a_t ~ μ(·|o_t) -> r_t, o_{t+1}, for `len(columns)` environments that write to `columns` of the ring.

    `act` infers actions and sends them; `absorb` waits for the environments and writes. In between, the environments
    step and the caller can do other work. If the environments come in groups (`EnvSpec.group_size`), each call serves
    the group received last while the others step. Device work is static: on CUDA it runs as CUDA graphs, in the current
    stream. On a CPU inference can be `compiled`.
    """

    def __init__(
        self,
        env: VecEnv,
        network: Network,
        ring: Ring,
        columns: np.ndarray,
        behaviour: str,
        epsilons: Tensor,
        generator: torch.Generator,
        scale: ReturnScale | None = None,
        compiled: HowCompiled = "no",
    ) -> None:
        self.scale = scale
        self.env, self.network, self.columns = env, network, columns
        self.device = ring.device
        self.behaviour = BEHAVIOURS[behaviour]
        self.epsilons, self.generator = epsilons.to(self.device), generator
        self.version = 0  # of the policy in `network`
        self.running = 0  # environments whose next observation has not been received yet
        self.sent = 0  # of these, environments with an action: steps in flight
        self.awaiting_actions = False  # whether the group received last still needs actions
        self.steps_absorbed = 0  # agent steps counted by the last `absorb`
        count = len(columns)
        self.group_size = env.spec.group_size or count
        self.score = np.zeros(count)
        self.length = np.zeros(count, dtype=np.int64)
        self.clock = Stopwatch("environment", "inference")
        self._acted = np.zeros(count, dtype=np.int32)  # policy version of each environment's last action
        spec = env.spec.actions
        self.actions = torch.zeros(count, *spec.flat_shape, dtype=spec.acting_dtype, device=self.device)
        self.log_mu = torch.zeros(count, device=self.device)
        self.state = network.initial_state(count, self.device)
        size = ring.shape.policy_size
        self.policy = torch.zeros(count, size, device=self.device) if size else None  # log μ(·|o), if it is stored
        self.writer = StepWriter(ring, columns, self.group_size, self.actions, self.log_mu, self.state, self.policy)
        self._chosen = torch.zeros(self.group_size, *spec.flat_shape, dtype=spec.acting_dtype, device=self.device)
        self._read = Readback(self.device)
        self._infer: Callable[[], object] = Graphed(self._infer_on_device, self.device, [generator])
        self._drawn: list[Tensor] = []
        self._noise: Tensor | None = None  # of the network's output layers, new in each step for each environment
        self._like: HeadOutput | None = None
        if compiled != "no" and self.behaviour.choose is not None:
            self._compiled = Compiled(self._infer_from_drawn, fall_back=compiled == "try")
            self._infer = self._draw_and_infer

    def reset(self, seed: int) -> None:
        """Start new episodes in all environments, and open slots for the first group that is ready."""
        obs = self.env.reset(seed)
        self.running, self.sent, self.awaiting_actions = len(self.columns) - self.group_size, 0, True
        self.score[:], self.length[:] = 0, 0
        if self.scale is not None:
            self.scale.restart(self.columns)
        self.state.zero_()
        self.writer.reset(self.env_ids(), obs)

    def act(self) -> None:
        """Infer actions for the group received last, and send them."""
        began = time.perf_counter()
        self._infer()
        actions = self._read(self._chosen)
        self._acted[self.env_ids()] = self.version
        self.env.send(actions)
        self.running, self.sent = self.running + self.group_size, self.sent + self.group_size
        self.awaiting_actions = False
        self.clock.add("inference", began, "infer and send")

    def absorb(self) -> list[Episode]:
        """Wait for a group, close its open slots, open the next ones; returns the finished episodes.

        An environment that resets in the step after an episode's end ignores that step's action, so the step is not
        counted as an agent step.
        """
        began = time.perf_counter()
        self.running -= self.group_size
        step = self.env.recv()
        self.awaiting_actions = True
        received = self.clock.add("environment", began, "wait for environments")
        env_ids = self.env_ids()
        starts, closes = step.dummy, np.ones(self.group_size, dtype=bool)
        if step.first is not None:
            starts, closes = starts | step.first, ~step.first
        if step.final:
            starts = starts.copy()
            starts[list(step.final)] = True
        self.writer.step(env_ids, step, starts, closes, self._acted[env_ids])
        self.sent -= int(closes.sum())
        taken = closes & ~step.dummy
        self.steps_absorbed = int(taken.sum())
        self.score[env_ids] += step.rewards
        self.length[env_ids] += taken
        if self.scale is not None:
            self.scale.update(self.columns[env_ids], step.rewards, step.terminal | step.truncated, taken)
        ended = env_ids[step.terminated | step.truncated]
        finished = [Episode(int(self.columns[i]), float(self.score[i]), int(self.length[i])) for i in ended]
        self.score[ended], self.length[ended] = 0, 0
        self.clock.add("inference", received, "write to the ring")
        return finished

    def env_ids(self) -> Array:
        """Indices of the environments in the group received last."""
        return np.arange(self.group_size) if self.env.spec.group_size == 0 else np.asarray(self.env.ids)

    @torch.inference_mode()
    def _infer_on_device(self) -> None:
        self._draw_noise()
        out, state = self._forward()
        epsilons, left = self.epsilons[self.writer.env_ids], self.network.epsilon_left
        epsilons = epsilons if left is None else epsilons * left
        self._keep(out, state, *self.behaviour(out, epsilons, self.generator))

    @torch.no_grad()
    def _draw_and_infer(self) -> None:
        """The same with a compiled graph, which cannot draw from a generator: it is given the random numbers."""
        self._draw_noise()
        if self._like is None:
            self._like = self._forward()[0]
            if type(self._like).sample is not HeadOutput.sample:  # a head that draws in its own way
                self._infer = self._infer_on_device
                return self._infer_on_device()
        self._drawn = self._like.noise(self.generator)
        self._compiled()
        return None

    def _infer_from_drawn(self) -> Tensor:
        assert self.behaviour.choose is not None
        out, state = self._forward()
        self._keep(out, state, *self.behaviour.choose(out, self._drawn))
        return self._chosen

    def _draw_noise(self) -> None:
        if self.network.noise_size:
            self._noise = self.network.draw_noise(self.group_size, self.generator)

    def _forward(self) -> tuple[HeadOutput, Tensor]:
        obs, starts = self.writer.observations(), self.writer.starts
        state = self.state[self.writer.env_ids]
        out, state = self.network(obs.unsqueeze(0), state, starts.unsqueeze(0), self._noise)
        return out.map(lambda x: x[0]), state

    def _keep(self, out: HeadOutput, state: Tensor, actions: Tensor, log_mu: Tensor) -> None:
        ids = self.writer.env_ids
        self.state[ids], self.log_mu[ids], self.actions[ids] = state, log_mu, actions
        if self.policy is not None:
            self.policy[ids] = out.log_pi
        self._chosen.copy_(actions)
