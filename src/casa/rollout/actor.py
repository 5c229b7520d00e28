"""One group of environments, stepped together: infer once for all, send the actions, write what comes back."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casa.envs.types import Array, VecEnv
from casa.nn import Network
from casa.rollout.behaviour import BEHAVIOURS
from casa.rollout.ring import Ring
from casa.rollout.writer import StepWriter
from casa.runtime.stopwatch import Stopwatch
from casa.runtime.streams import Graphed, Readback


class Episode(NamedTuple):
    """A finished episode: its environment, raw return, and length in agent steps."""

    env: int
    score: float
    length: int


class Actor:
    """o_t -> a_t ~ μ(·|o_t) -> r_t, o_{t+1}, for `len(columns)` environments that write to `columns` of the ring.

    `act` infers and sends; `absorb` waits for the environments and writes. Between the two they run, and the caller
    may do something else. Where the environments come in groups (`EnvSpec.group_size`), each call serves the group
    that came last, and the others run meanwhile. The work on the device is static: on CUDA graphs, in the current
    stream.
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
    ) -> None:
        self.env, self.network, self.columns = env, network, columns
        self.device = ring.device
        self.behaviour = BEHAVIOURS[behaviour]
        self.epsilons, self.generator = epsilons.to(self.device), generator
        self.version = 0  # of the policy in `network`
        self.running = 0  # environments that have not come back yet
        self.sent = 0  # those of them that have an action: steps under way
        self.awaiting_actions = False  # whether the group that came last has no actions yet
        self.steps_absorbed = 0  # agent steps of the last `absorb`
        count = len(columns)
        self.group_size = env.spec.group_size or count
        self.score = np.zeros(count)
        self.length = np.zeros(count, dtype=np.int64)
        self.clock = Stopwatch("environment", "inference")
        self._acted = np.zeros(count, dtype=np.int32)  # version of the policy that acted last, by environment
        spec = env.spec.actions
        self.actions = torch.zeros(count, *spec.flat_shape, dtype=torch.int64, device=self.device)
        self.log_mu = torch.zeros(count, device=self.device)
        self.state = network.initial_state(count, self.device)
        self.writer = StepWriter(ring, columns, self.group_size, self.actions, self.log_mu, self.state)
        self._chosen = torch.zeros(self.group_size, *spec.flat_shape, dtype=torch.int64, device=self.device)
        self._read = Readback(self.device)
        self._infer = Graphed(self._infer_on_device, self.device, [generator])

    def reset(self, seed: int) -> None:
        """Start new episodes everywhere; the group that comes first gets its open slots filled."""
        obs = self.env.reset(seed)
        self.running, self.sent, self.awaiting_actions = len(self.columns) - self.group_size, 0, True
        self.score[:], self.length[:] = 0, 0
        self.state.zero_()
        self.writer.reset(self.env_ids(), obs)

    def act(self) -> None:
        """Infer the actions for the observations that came last, and send them."""
        began = time.perf_counter()
        self._infer()
        actions = self._read(self._chosen)
        self._acted[self.env_ids()] = self.version
        self.env.send(actions)
        self.running, self.sent = self.running + self.group_size, self.sent + self.group_size
        self.awaiting_actions = False
        self.clock.add("inference", began, "infer and send")

    def absorb(self) -> list[Episode]:
        """Wait for the environments, close the open slots, open the next ones; the episodes that ended.

        An environment that resets in the step after an end ignores that step's action: it is no agent step.
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
        counts = closes
        self.steps_absorbed = int(counts.sum())
        self.score[env_ids] += step.rewards
        self.length[env_ids] += closes & ~step.dummy
        ended = env_ids[step.terminated | step.truncated]
        finished = [Episode(int(self.columns[i]), float(self.score[i]), int(self.length[i])) for i in ended]
        self.score[ended], self.length[ended] = 0, 0
        self.clock.add("inference", received, "write to the ring")
        return finished

    def env_ids(self) -> Array:
        """The environments of the group that came last."""
        return np.arange(self.group_size) if self.env.spec.group_size == 0 else np.asarray(self.env.ids)

    @torch.inference_mode()
    def _infer_on_device(self) -> None:
        ids = self.writer.env_ids
        obs, starts = self.writer.observations(), self.writer.starts
        out, state = self.network(obs.unsqueeze(0), self.state[ids], starts.unsqueeze(0))
        actions, log_mu = self.behaviour(out.map(lambda x: x[0]), self.epsilons[ids], self.generator)
        self.state[ids], self.log_mu[ids], self.actions[ids] = state, log_mu, actions
        self._chosen.copy_(actions)
