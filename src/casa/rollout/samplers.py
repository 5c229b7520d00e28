"""Which sequences the learner trains on next: first-in-first-out with exact reuse, or prioritized replay.

A sequence is (environment, first slot): `burn_in + seq_len` transitions that begin at a multiple of `seq_len`, where
a recurrent state is stored. Only the last `seq_len` of them are trained on, so every transition is trained on by
exactly one sequence.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from casa.rollout.ring import Batch, Ring
from casa.rollout.sum_tree import SumTree, importance_weights

SLOTS_A_STEP = 2
"""Slots that one step of an environment may write: a transition, and a final observation."""


class Sample(NamedTuple):
    """A batch, the weight of each of its sequences in the loss [B], and the sequences that it consists of.

    `envs` [B] and `blocks` [B]: sequence i is block `blocks[i]` of environment `envs[i]`.
    """

    batch: Batch
    weights: Tensor
    envs: np.ndarray
    blocks: np.ndarray


class Sampler(Protocol):
    """What the loops ask of a sampler. Every method may be called from the acting and from the learning thread.

    Each takes `lock`; a loop that must do several things at once takes it first.
    """

    lock: threading.RLock

    def observe(self) -> None:
        """Take notice of the sequences that became complete since the last call."""

    def ready(self) -> bool:
        """Whether a batch is owed to the learner."""

    def next(self) -> Sample:
        """The next batch."""

    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """Write back the priorities [B] of a sample's sequences."""

    def room(self) -> bool:
        """Whether the actor may write another slot without destroying what the learner still needs."""

    def stats(self) -> dict[str, float]:
        """Reuse so far and what was lost."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data and arrays."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class _Locked(Protocol):
    lock: threading.RLock


S = TypeVar("S", bound=_Locked)
P = ParamSpec("P")
R = TypeVar("R")


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """The method, in one piece as seen from other threads."""

    @wraps(method)
    def inside(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return inside


class _Blocks:
    """Hands out each complete sequence of a ring once: (environment, number of its first block)."""

    def __init__(self, ring: Ring, seq_len: int, burn_in: int) -> None:
        self.ring, self.seq_len, self.length = ring, seq_len, burn_in + seq_len
        self.done = np.zeros(ring.shape.num_envs, dtype=np.int64)

    def fresh(self) -> tuple[np.ndarray, np.ndarray]:
        """Environments [n] and blocks [n] that became complete since the last call, oldest first."""
        # Its last observation is in the slot after its last transition.
        complete = np.maximum((self.ring.opened - 1 - self.length) // self.seq_len + 1, self.done)
        counts = complete - self.done
        if not counts.any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        envs = np.repeat(np.arange(len(counts)), counts)
        offsets = np.arange(len(envs)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = self.done[envs] + offsets
        self.done = complete
        order = np.argsort(blocks, kind="stable")
        return envs[order], blocks[order]


class FifoSampler:
    """Every sequence is used exactly `reuse` times, oldest first, shuffled within each cohort that arrives together.

    The actor waits (`room`) rather than overwrite a sequence that is still owed.
    """

    def __init__(
        self, ring: Ring, *, seq_len: int, burn_in: int, batch: int, reuse: int, rng: np.random.Generator
    ) -> None:
        self.lock = threading.RLock()
        self.ring, self.seq_len, self.length = ring, seq_len, burn_in + seq_len
        self.batch, self.reuse, self.rng = batch, reuse, rng
        self.blocks = _Blocks(ring, seq_len, burn_in)
        self.queue: deque[tuple[int, int]] = deque()
        self.served = 0
        self.arrived = 0

    @locked
    def observe(self) -> None:
        """Queue each newly complete sequence `reuse` times, in independently shuffled passes."""
        envs, blocks = self.blocks.fresh()
        self.arrived += len(envs)
        for _ in range(self.reuse if len(envs) else 0):
            order = self.rng.permutation(len(envs))
            self.queue.extend(zip(envs[order].tolist(), blocks[order].tolist(), strict=True))

    @locked
    def ready(self) -> bool:
        """Whether a whole batch is queued."""
        return len(self.queue) >= self.batch

    @locked
    def next(self) -> Sample:
        """The batch at the head of the queue, every sequence with weight 1."""
        picked = np.array([self.queue.popleft() for _ in range(self.batch)])
        self.served += self.batch
        batch = self.ring.gather(picked[:, 0], picked[:, 1] * self.seq_len, self.length)
        return Sample(batch, torch.ones(self.batch, device=self.ring.device), picked[:, 0], picked[:, 1])

    @locked
    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """Nothing to write back."""

    @locked
    def room(self) -> bool:
        """Whether the next slot leaves every queued sequence whole, and the learner is at most one cohort behind.

        Slots that are written but not yet trained on: a sequence of every environment and a batch at most. So the
        actor keeps the learner's pace; one that ran ahead as far as the ring allows would make the data stale, and
        training unstable. Where so many wait, a batch is complete: the two never wait for each other.
        """
        envs, seq_len = self.ring.shape.num_envs, self.seq_len
        written = int(self.ring.written.sum()) - (self.length - seq_len) * envs
        if written - self.served * seq_len / self.reuse > envs * seq_len + self.batch * seq_len / self.reuse:
            return False
        if not self.queue:
            return True
        # The step that is under way, the next, and a slot that a boundary may add.
        oldest = self.ring.oldest(ahead=2 * SLOTS_A_STEP + 1)
        owed = np.array(self.queue)
        return bool((owed[:, 1] * seq_len >= oldest[owed[:, 0]]).all())

    @locked
    def stats(self) -> dict[str, float]:
        """Mean number of uses of the sequences that arrived, those still queued counted as not used."""
        return {"reuse": self.served / max(self.arrived, 1)}

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Cursors, counters and the queue."""
        return {
            "done": self.blocks.done.tolist(),
            "queue": [list(item) for item in self.queue],
            "served": self.served,
            "arrived": self.arrived,
            "rng": self.rng.bit_generator.state,
        }

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.blocks.done[:] = state["done"]
        self.queue = deque((env, block) for env, block in state["queue"])
        self.served, self.arrived = state["served"], state["arrived"]
        self.rng.bit_generator.state = state["rng"]


class PrioritizedSampler:
    """P(i) ∝ p_iᵅ over whole sequences; w_i = (n P(i))^-β / max w. New sequences get the largest priority seen.

    A batch is owed for every `batch · seq_len / reuse` transitions that arrive, once `min_fill` transitions are in.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        seq_len: int,
        burn_in: int,
        batch: int,
        reuse: int,
        exponent: float,
        importance: float,
        min_fill: int,
        rng: np.random.Generator,
    ) -> None:
        self.lock = threading.RLock()
        self.ring, self.seq_len, self.length = ring, seq_len, burn_in + seq_len
        self.batch, self.reuse, self.rng = batch, reuse, rng
        self.exponent, self.importance, self.min_fill = exponent, importance, min_fill
        self.blocks = _Blocks(ring, seq_len, burn_in)
        self.per_env = ring.shape.capacity // seq_len
        self.tree = SumTree(self.per_env * ring.shape.num_envs)
        self.block_of = np.full(self.tree.capacity, -1, dtype=np.int64)  # which block a leaf stands for
        self.largest = 1.0
        self.arrived = 0
        self.served = 0
        self.credit = 0.0

    @locked
    def observe(self) -> None:
        """Add newly complete sequences; forget those that the actor has begun to overwrite."""
        envs, blocks = self.blocks.fresh()
        if len(envs):
            leaves = envs * self.per_env + blocks % self.per_env
            self.block_of[leaves] = blocks
            self.tree.set(leaves, np.full(len(leaves), self.largest))
            self.arrived += len(envs)
            if self.arrived * self.seq_len >= self.min_fill:
                self.credit += len(envs) * self.reuse / self.batch
        self._forget()

    def _forget(self) -> None:
        # The first block that survives the next step, and a boundary before it.
        first = -(-self.ring.oldest(ahead=SLOTS_A_STEP + 1) // self.seq_len)
        env = np.arange(self.tree.capacity) // self.per_env
        stale = np.flatnonzero((self.block_of >= 0) & (self.block_of < first[env]))
        if len(stale):
            self.tree.set(stale, np.zeros(len(stale)))
            self.block_of[stale] = -1

    @locked
    def ready(self) -> bool:
        """Whether a batch is owed."""
        return self.credit >= 1

    @locked
    def next(self) -> Sample:
        """A stratified draw by priority."""
        self.credit -= 1
        self.served += self.batch
        leaves, probabilities = self.tree.sample(self.batch, self.rng)
        envs, blocks = leaves // self.per_env, self.block_of[leaves]
        batch = self.ring.gather(envs, blocks * self.seq_len, self.length)
        live = int((self.block_of >= 0).sum())
        weights = torch.as_tensor(importance_weights(probabilities, live, self.importance), device=self.ring.device)
        return Sample(batch, weights.float(), envs, blocks)

    @locked
    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """p_i for the sequences of a sample; those whose leaf is forgotten or holds a newer sequence are left out."""
        raised = np.asarray(priorities, np.float64) ** self.exponent
        self.largest = max(self.largest, float(raised.max()))
        leaves = sample.envs * self.per_env + sample.blocks % self.per_env
        alive = self.block_of[leaves] == sample.blocks
        self.tree.set(leaves[alive], np.maximum(raised[alive], 1e-12))

    @locked
    def room(self) -> bool:
        """Replay may always be overwritten, but not so fast that the learner falls more than 64 batches behind."""
        return self.credit < 64

    @locked
    def stats(self) -> dict[str, float]:
        """Uses per sequence that arrived, and how full the replay is."""
        return {
            "reuse": self.served / max(self.arrived, 1),
            "replay_fill": float((self.block_of >= 0).mean()),
            "max_priority": self.largest,
        }

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Cursors, counters and priorities."""
        return {
            "done": self.blocks.done.tolist(),
            "block_of": torch.from_numpy(self.block_of),
            "tree": self.tree.state_dict(),
            "largest": self.largest,
            "arrived": self.arrived,
            "served": self.served,
            "credit": self.credit,
            "rng": self.rng.bit_generator.state,
        }

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.blocks.done[:] = state["done"]
        self.block_of[:] = np.asarray(state["block_of"])
        self.tree.load_state_dict(state["tree"])
        self.largest, self.credit = state["largest"], state["credit"]
        self.arrived, self.served = state["arrived"], state["served"]
        self.rng.bit_generator.state = state["rng"]
