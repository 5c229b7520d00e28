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
from casa.rollout.stopwatch import Stopwatch
from casa.rollout.streams import Graphed, Readback, Staging, on


class Episode(NamedTuple):
    """A finished episode: its environment, raw return, and length in agent steps."""

    env: int
    score: float
    length: int


class Actor:
    """o_t -> a_t ~ μ(·|o_t) -> r_t, o_{t+1}, for `len(columns)` environments that write to `columns` of the ring.

    `act` infers and sends; `absorb` waits for the environments and writes. Between the two the environments run
    (`waiting`), and the caller may do something else. What the device does in either is static: on CUDA a graph, in
    `stream`. Only the newest frames travel to the device; it rebuilds the stacks from the ring.
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
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self.env, self.network, self.ring, self.columns = env, network, ring, columns
        self.device, self.stream = ring.device, stream
        self.select = BEHAVIOURS[behaviour]
        self.epsilons, self.generator = epsilons.to(self.device), generator
        self.version = 0  # of the policy in `network`
        self.waiting = False  # for the environments
        count = len(columns)
        self.score = np.zeros(count)
        self.length = np.zeros(count, dtype=np.int64)
        self.clock = Stopwatch("environment", "inference")
        self._columns = torch.as_tensor(columns, device=self.device)
        self._input = Staging(
            self.device,
            {
                "frames": ((count, *ring.shape.frame_shape), ring.shape.frame_dtype),
                "rewards": ((count,), torch.float32),
                "version": ((1,), torch.int32),
                **dict.fromkeys(("terminated", "truncated", "starts"), ((count,), torch.bool)),
            },
        )
        self.actions = torch.zeros(count, dtype=torch.int64, device=self.device)
        self.log_mu = torch.zeros(count, device=self.device)
        self.state = network.initial_state(count, self.device)
        self._read_actions = Readback(self.device)
        self._infer = Graphed(self._infer_now, self.device, [generator])
        self._write = Graphed(self._write_now, self.device)

    def reset(self, seed: int) -> None:
        """Start new episodes everywhere; the ring's open slots get their first observations."""
        obs = self.env.reset(seed)
        self.waiting = False
        self.score[:], self.length[:] = 0, 0
        with on(self.stream), self.ring.writing():
            self.state.zero_()
            self._stage(obs, np.ones(len(self.columns), dtype=bool))
            self._open()

    def act(self) -> None:
        """Infer the actions for the open observations and send them."""
        began = time.perf_counter()
        with on(self.stream):
            self._infer()
            actions = self._read_actions(self.actions)
        self._input.host["version"][:] = self.version
        self.env.send(actions)
        self.waiting = True
        self.clock.add("inference", began, "infer and send")

    def absorb(self) -> list[Episode]:
        """Wait for the environments, complete the open slots, open the next ones; the episodes that ended."""
        began = time.perf_counter()
        step = self.env.recv()
        self.waiting = False
        received = self.clock.add("environment", began, "wait for environments")
        ends = step.terminated | step.truncated
        starts = step.dummy
        if step.final:
            starts = starts.copy()
            starts[list(step.final)] = True
        host = self._input.host
        host["rewards"][:], host["terminated"][:], host["truncated"][:] = step.rewards, step.terminated, step.truncated
        with on(self.stream), self.ring.writing():
            self._stage(step.obs, starts)
            if step.final:
                self._write_with_final(step.final)
            else:
                self._write()
                self.ring.count(self.columns)
        self.score += step.rewards
        self.length += ~step.dummy
        finished = [
            Episode(int(self.columns[i]), float(self.score[i]), int(self.length[i])) for i in np.flatnonzero(ends)
        ]
        self.score[ends], self.length[ends] = 0, 0
        self.clock.add("inference", received, "write to the ring")
        return finished

    def _stage(self, obs: np.ndarray, starts: np.ndarray) -> None:
        self._input.host["frames"][:] = obs[:, -1] if self.ring.shape.stack > 1 else obs
        self._input.host["starts"][:] = starts
        self._input.upload()

    @torch.inference_mode()
    def _infer_now(self) -> None:
        obs = self.ring.newest(self._columns)
        out, state = self.network(obs.unsqueeze(0), self.state, self._input.device["starts"].unsqueeze(0))
        actions, log_mu = self.select(out.map(lambda x: x[0]), self.epsilons, self.generator)
        self.actions.copy_(actions)
        self.log_mu.copy_(log_mu)
        self.state.copy_(state)

    def _write_now(self) -> None:
        self._close()
        self._open()

    def _close(self) -> None:
        x = self._input.device
        self.ring.write_transition(
            self._columns, self.actions, self.log_mu, x["rewards"], x["terminated"], x["truncated"], x["version"]
        )

    def _open(self) -> None:
        self.ring.begin(self._columns, self._input.device["frames"], self._input.device["starts"], self.state)

    def _write_with_final(self, final: dict[int, np.ndarray]) -> None:
        """Give each final observation a slot of its own, where the environment has already moved on."""
        self._close()
        self.ring.count(self.columns)
        rows = np.array(list(final))
        envs = self.columns[rows]
        obs = torch.as_tensor(np.stack(list(final.values())), device=self.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        picked = torch.as_tensor(rows, device=self.device)
        newest = obs[:, -1] if self.ring.shape.stack > 1 else obs
        self.ring.begin(envs, newest, no, self.state[picked])
        self.ring.complete_without_transition(envs, int(self._input.host["version"][0]))
        self._open()
