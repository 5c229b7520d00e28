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
from casa.rollout.streams import Graphed, Readback, Staging


class Episode(NamedTuple):
    """A finished episode: its environment, raw return, and length in agent steps."""

    env: int
    score: float
    length: int


class Actor:
    """o_t -> a_t ~ μ(·|o_t) -> r_t, o_{t+1}, for `len(columns)` environments that write to `columns` of the ring.

    `act` infers and sends; `absorb` waits for the environments and writes. Between the two they run, and the caller
    may do something else. Where the environments come in batches, each call serves the one that came last; the others
    run meanwhile. What the device does is static: on CUDA graphs, in the current stream. Only the newest frames
    travel there; it rebuilds the stacks from the ring.
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
        self.version = 0  # of the policy in `network`
        self.running = 0  # environments that have not come back yet
        self.sent = 0  # those of them that have an action: steps under way
        self.unsent = False  # whether those that came last have no actions yet
        self.taken = 0  # steps that the last `absorb` took
        count = len(columns)
        self.batch = env.spec.batch or count
        self.score = np.zeros(count)
        self.length = np.zeros(count, dtype=np.int64)
        self.clock = Stopwatch("environment", "inference")
        self._acted = np.zeros(count, dtype=np.int32)  # version of the policy that acted last, by environment
        self._columns = torch.as_tensor(columns, device=self.device)
        flags = ("terminated", "truncated", "starts", "closes")
        self._input = Staging(
            self.device,
            {
                "frames": ((self.batch, *ring.shape.frame_shape), ring.shape.frame_dtype),
                "which": ((self.batch,), torch.int64),
                "rewards": ((self.batch,), torch.float32),
                "version": ((self.batch,), torch.int32),
                **dict.fromkeys(flags, ((self.batch,), torch.bool)),
            },
        )
        self.actions = torch.zeros(count, dtype=torch.int64, device=self.device)
        self.log_mu = torch.zeros(count, device=self.device)
        self.state = network.initial_state(count, self.device)
        self._chosen = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        self._read = Readback(self.device)
        self._infer = Graphed(self._infer_now, self.device, [generator])
        self._write = Graphed(self._write_now, self.device)

    def reset(self, seed: int) -> None:
        """Start new episodes everywhere; the open slots of those that come first get their first observations."""
        obs = self.env.reset(seed)
        self.running, self.sent, self.unsent = len(self.columns) - self.batch, 0, True
        self.score[:], self.length[:] = 0, 0
        self._input.wait()
        with self.ring.writing():
            self.state.zero_()
            self._stage(obs, self.which(), np.ones(self.batch, dtype=bool))
            self._open()
            self.ring.count_begun(self.columns[self.which()])

    def act(self) -> None:
        """Infer the actions for the open observations that came last, and send them."""
        began = time.perf_counter()
        self._infer()
        actions = self._read(self._chosen)
        self._acted[self.which()] = self.version
        self.env.send(actions)
        self.running, self.sent, self.unsent = self.running + self.batch, self.sent + self.batch, False
        self.clock.add("inference", began, "infer and send")

    def absorb(self) -> list[Episode]:
        """Wait for the environments, complete the open slots, open the next ones; the episodes that ended."""
        began = time.perf_counter()
        self.running -= self.batch
        step = self.env.recv()
        self.unsent = True
        received = self.clock.add("environment", began, "wait for environments")
        which = self.which()
        starts, closes = step.dummy, np.ones(self.batch, dtype=bool)
        if step.first is not None:
            starts, closes = starts | step.first, ~step.first
        if step.final:
            starts = starts.copy()
            starts[list(step.final)] = True
        self._input.wait()
        host = self._input.host
        host["rewards"][:], host["terminated"][:], host["truncated"][:] = step.rewards, step.terminated, step.truncated
        host["version"][:], host["closes"][:] = self._acted[which], closes
        with self.ring.writing():
            self._stage(step.obs, which, starts)
            if step.final:
                self._write_with_final(step.final)
            else:
                self._write()
                self.ring.count(self.columns[which[closes]])
            self.ring.count_begun(self.columns[which])
        self.taken = int(closes.sum())
        self.sent -= self.taken
        self.score[which] += step.rewards
        self.length[which] += closes & ~step.dummy
        ended = which[step.terminated | step.truncated]
        finished = [Episode(int(self.columns[i]), float(self.score[i]), int(self.length[i])) for i in ended]
        self.score[ended], self.length[ended] = 0, 0
        self.clock.add("inference", received, "write to the ring")
        return finished

    def which(self) -> np.ndarray:
        """The environments that came last."""
        return np.arange(self.batch) if self.env.spec.batch == 0 else np.asarray(self.env.ids)

    def _stage(self, obs: np.ndarray, which: np.ndarray, starts: np.ndarray) -> None:
        host = self._input.host
        host["frames"][:] = self._newest(obs)
        host["which"][:], host["starts"][:] = which, starts
        self._input.upload()

    def _newest(self, obs: np.ndarray) -> np.ndarray:
        return obs[:, -1] if self.ring.shape.stack > 1 else obs

    @torch.inference_mode()
    def _infer_now(self) -> None:
        which, starts = self._input.device["which"], self._input.device["starts"]
        obs = self.ring.newest(self._columns[which])
        out, state = self.network(obs.unsqueeze(0), self.state[which], starts.unsqueeze(0))
        actions, log_mu = self.select(out.map(lambda x: x[0]), self.epsilons[which], self.generator)
        self.state[which], self.log_mu[which], self.actions[which] = state, log_mu, actions
        self._chosen.copy_(actions)

    def _write_now(self) -> None:
        self._close()
        self._open()

    def _close(self) -> None:
        x = self._input.device
        which = x["which"]
        self.ring.write_transition(
            self._columns[which],
            self.actions[which],
            self.log_mu[which],
            x["rewards"],
            x["terminated"],
            x["truncated"],
            x["version"],
            x["closes"],
        )

    def _open(self) -> None:
        x = self._input.device
        which = x["which"]
        self.ring.write_observation(self._columns[which], x["frames"], x["starts"], self.state[which])

    def _write_with_final(self, final: dict[int, np.ndarray]) -> None:
        """Give each final observation a slot of its own, where the environment has already moved on."""
        self._close()
        self.ring.count(self.columns)
        rows = np.array(list(final))
        envs = self.columns[rows]
        frames = torch.as_tensor(self._newest(np.stack(list(final.values()))), device=self.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=self.device)
        picked = torch.as_tensor(rows, device=self.device)
        self.ring.begin(envs, frames, no, self.state[picked])
        self.ring.complete_without_transition(envs, self.version)
        self._open()
