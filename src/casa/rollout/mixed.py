"""New sequences mixed with replayed ones (LASER: Schmitt, Hessel and Simonyan, 2020)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from casa.rollout.ring import Ring
from casa.rollout.samplers import SLOTS_A_STEP, FifoSampler, Sample, locked


class _Replay(NamedTuple):
    """Blocks `first[i]` .. `first[i] + counts[i]` - 1 of each environment i: the sequences to draw from."""

    first: np.ndarray
    counts: np.ndarray


class MixedSampler(FifoSampler):
    """B/reuse sequences of a batch are new and used as such exactly once; the rest are drawn from the replay.

    P(i) = 1/n over the n complete sequences among the last `replay` slots of each environment, new ones included, with
    replacement. So a new sequence is used 1 + (B - B/reuse) / (B/reuse) = `reuse` times on average. New sequences are
    queued as in `FifoSampler`, which also limits how far the actor may run ahead. Those that arrive before `min_fill`
    transitions are there are only replayed.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        seq_len: int,
        burn_in: int,
        batch: int,
        reuse: int,
        replay: int,
        min_fill: int,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(ring, seq_len=seq_len, burn_in=burn_in, batch=batch // reuse, reuse=1, rng=rng)
        self.replayed = batch - self.batch  # per batch; `self.batch` counts the new ones
        self.replay, self.min_fill = replay, min_fill
        self.learned = 0  # sequences in all batches so far

    @locked
    def observe(self) -> None:
        """Queue each newly complete sequence once; before `min_fill`, leave it to the replay."""
        super().observe()
        if self.arrived * self.seq_len < self.min_fill:
            self.served += len(self.queue)
            self.queue.clear()

    @locked
    def next(self) -> Sample:
        """The new sequences at the head of the queue, then the replayed ones; every weight is 1."""
        fresh = np.array([self.queue.popleft() for _ in range(self.batch)])
        drawn = self._draw(self.replayed)
        envs, blocks = np.concatenate((fresh, drawn)).T
        self.served += self.batch
        self.learned += len(envs)
        batch = self.ring.gather(envs, blocks * self.seq_len, self.length)
        return Sample(batch, torch.ones(len(envs), device=self.ring.device), envs, blocks)

    def _live(self) -> _Replay:
        # Not what the step in flight overwrites, even if `Ring.cut` adds a slot before it.
        stored = self.ring.oldest(ahead=SLOTS_A_STEP + 1)
        first = -(-np.maximum(stored, self.ring.written - self.replay) // self.seq_len)
        return _Replay(first, np.maximum(self.blocks.done - first, 0))

    def _draw(self, count: int) -> np.ndarray:
        """`count` independent uniform draws: (environment, block) [count, 2]."""
        first, counts = self._live()
        ends = np.cumsum(counts)
        picked = self.rng.integers(ends[-1], size=count)
        envs = np.searchsorted(ends, picked, side="right")
        return np.stack((envs, first[envs] + picked - (ends - counts)[envs]), 1)

    @locked
    def stats(self) -> dict[str, float]:
        """Mean number of uses per sequence, fill of the replay, and mean age of its sequences in agent steps."""
        first, counts = self._live()
        live = int(counts.sum())
        ages = self.ring.written - (first + (counts - 1) / 2) * self.seq_len  # of each environment's mean sequence
        return {
            "reuse": self.learned / max(self.arrived, 1),
            "replay_fill": live * self.seq_len / (self.replay * len(counts)),
            "replay_age": float((ages * counts).sum()) / max(live, 1) * len(counts),
        }

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Cursors, counters and the queue."""
        return {**super().state_dict(), "learned": self.learned}

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        self.learned = state["learned"]
