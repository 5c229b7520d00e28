"""One group of environments, stepped together: infer once for all, write to the ring, send the actions."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casa.envs.types import VecEnv
from casa.nn import Network
from casa.rollout.behaviour import BEHAVIOURS
from casa.rollout.ring import Ring


class Episode(NamedTuple):
    """A finished episode: its environment, raw return, and length in agent steps."""

    env: int
    score: float
    length: int


class Actor:
    """o_t -> a_t ~ μ(·|o_t) -> r_t, o_{t+1}, for `len(columns)` environments that write to `columns` of the ring.

    `act` infers and sends; `absorb` waits for the environments and writes. Between the two the environments run,
    and the caller may do something else.
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
        self.env, self.network, self.ring, self.columns = env, network, ring, columns
        self.device = ring.device
        self.select = BEHAVIOURS[behaviour]
        self.epsilons, self.generator = epsilons.to(self.device), generator
        self.stack = env.spec.frame_stack
        self.version = 0
        self.score = np.zeros(len(columns))
        self.length = np.zeros(len(columns), dtype=np.int64)
        self.seconds = {"environment": 0.0, "inference": 0.0}

    def reset(self, seed: int) -> None:
        """Start new episodes everywhere; the ring's open slots get their first observations."""
        obs = self.env.reset(seed)
        count = len(self.columns)
        self.score[:], self.length[:] = 0, 0
        self.state = self.network.initial_state(count, self.device)
        self._open(obs, np.ones(count, dtype=bool))

    @torch.inference_mode()
    def act(self) -> None:
        """Infer the actions for the open observations and send them."""
        began = time.perf_counter()
        out, self.state = self.network(self.obs.unsqueeze(0), self.state, self.starts.unsqueeze(0))
        self.actions, self.log_mu = self.select(out.map(lambda x: x[0]), self.epsilons, self.generator)
        self.env.send(self.actions.cpu().numpy())
        self.seconds["inference"] += time.perf_counter() - began

    @torch.inference_mode()
    def absorb(self) -> list[Episode]:
        """Wait for the environments, complete the open slots, open the next ones; the episodes that ended."""
        began = time.perf_counter()
        step = self.env.recv()
        waited = time.perf_counter()
        self.seconds["environment"] += waited - began
        ends = step.terminated | step.truncated

        def put(array: np.ndarray) -> Tensor:
            return torch.as_tensor(array, device=self.device)

        self.ring.complete(
            self.columns,
            self.actions,
            self.log_mu,
            put(step.rewards),
            put(step.terminated),
            put(step.truncated),
            self.version,
        )
        self.score += step.rewards
        self.length += ~step.dummy
        finished = [
            Episode(int(self.columns[i]), float(self.score[i]), int(self.length[i])) for i in np.flatnonzero(ends)
        ]
        self.score[ends], self.length[ends] = 0, 0
        starts = step.dummy.copy()
        if step.final:
            self._write_final(step.final)
            starts[list(step.final)] = True
        self._open(step.obs, starts)
        self.seconds["inference"] += time.perf_counter() - waited
        return finished

    def _write_final(self, final: dict[int, np.ndarray]) -> None:
        """Give each final observation a slot of its own, where the environment has already moved on."""
        rows = np.array(list(final))
        envs = self.columns[rows]
        obs = torch.as_tensor(np.stack(list(final.values())), device=self.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        picked = torch.as_tensor(rows, device=self.device)
        self.ring.begin(envs, self._newest(obs), no, self.state[picked])
        self.ring.complete_without_transition(envs, self.version)

    def _open(self, obs: np.ndarray, starts: np.ndarray) -> None:
        self.obs = torch.as_tensor(obs, device=self.device)
        self.starts = torch.as_tensor(starts, device=self.device)
        self.ring.begin(self.columns, self._newest(self.obs), self.starts, self.state)

    def _newest(self, obs: Tensor) -> Tensor:
        return obs[:, -1] if self.stack > 1 else obs
