"""Samplers choose the sequences that the learner trains on next: FIFO with exact reuse, or prioritized replay.

`casa.rollout.mixed` has the third: new sequences mixed with uniform replay.

A sequence is (environment, first slot): `burn_in + seq_len` transitions that begin at a multiple of `seq_len`, where
a recurrent state is stored. Only the last `seq_len` of them are trained on, so every transition is trained on in
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
"""Maximum number of slots that one env step writes: a transition and a final observation."""


class Sample(NamedTuple):
    """A batch, the loss weight of each of its sequences [B], and the origin of each sequence.

    `envs` [B] and `blocks` [B]: sequence i is block `blocks[i]` of environment `envs[i]`.
    """

    batch: Batch
    weights: Tensor
    envs: np.ndarray
    blocks: np.ndarray


class Sampler(Protocol):
    """Interface of a sampler. Every method may be called from the acting and from the learning thread.

    Each method takes `lock`; a loop that needs several calls to be atomic takes it first.
    """

    lock: threading.RLock

    def observe(self) -> None:
        """Add the sequences that were completed since the last call."""

    def ready(self) -> bool:
        """Whether a learner step is due."""

    def next(self) -> Sample:
        """The next batch."""

    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """Write back the priorities [B] of a sample's sequences."""

    def room(self, under_way: int = 0) -> bool:
        """Whether the actor may take another step; False if the learner is too far behind.

        `under_way`: slots that will be written anyway.
        """

    def fits(self, slots: np.ndarray | int) -> bool:
        """Whether so many more slots (of each environment) overwrite nothing that is still needed."""

    def stats(self) -> dict[str, float]:
        """Metrics: reuse so far and, for replay, its fill and largest priority."""

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state as plain data and arrays."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""


class _Locked(Protocol):
    lock: threading.RLock


S = TypeVar("S", bound=_Locked)
P = ParamSpec("P")
R = TypeVar("R")


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorator that holds `self.lock` during the method."""

    @wraps(method)
    def inside(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return inside


class _Blocks:
    """Returns each complete sequence of a ring once, as (environment, index of its first block of `seq_len` slots)."""

    def __init__(self, ring: Ring, seq_len: int, burn_in: int) -> None:
        self.ring, self.seq_len, self.length = ring, seq_len, burn_in + seq_len
        self.done = np.zeros(ring.shape.num_envs, dtype=np.int64)

    def fresh(self) -> tuple[np.ndarray, np.ndarray]:
        """Environments [n] and blocks [n] of the sequences completed since the last call, oldest first."""
        # A sequence is complete when the slot after its last transition is open: that holds its last observation.
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
    """Every sequence is used exactly `reuse` times, oldest first, in shuffled passes over those that arrived together.

    Environments whose episodes end at different times complete their sequences one by one. If each were queued at once,
    `reuse` times, a batch would consist of copies of a few sequences. So sequences wait until there are `rollout` of
    them, as in the epochs of PPO, or at least a batch. The actor waits (`room`) instead of overwriting a sequence that
    is still queued.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        seq_len: int,
        burn_in: int,
        batch: int,
        reuse: int,
        rng: np.random.Generator,
        rollout: int = 0,
    ) -> None:
        self.rollout = rollout
        self.together = max(rollout, batch if reuse > 1 else 1)
        self.lock = threading.RLock()
        self.ring, self.seq_len, self.length = ring, seq_len, burn_in + seq_len
        self.batch, self.reuse, self.rng = batch, reuse, rng
        self.blocks = _Blocks(ring, seq_len, burn_in)
        self.queue: deque[tuple[int, int]] = deque()
        self.waiting: list[tuple[int, int]] = []
        self.served = 0
        self.arrived = 0

    @locked
    def observe(self) -> None:
        """Queue each newly complete sequence `reuse` times, in independently shuffled passes."""
        envs, blocks = self.blocks.fresh()
        self.arrived += len(envs)
        self.waiting += zip(envs.tolist(), blocks.tolist(), strict=True)
        while len(self.waiting) >= self.together:
            count = self.together if self.rollout else len(self.waiting)
            together, self.waiting = self.waiting[:count], self.waiting[count:]
            for _ in range(self.reuse):
                self.queue.extend(together[i] for i in self.rng.permutation(count))

    @locked
    def ready(self) -> bool:
        """Whether a full batch is queued."""
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
        """A no-op: FIFO has no priorities."""

    @locked
    def room(self, under_way: int = 0) -> bool:
        """Whether the actor's next step overwrites no queued sequence and the learner's backlog is small enough.

        The backlog, slots written but not yet trained on, is limited to one sequence per environment plus one batch.
        This bounds staleness: an actor that ran ahead as far as the ring allows would make training unstable. At the
        limit a full batch is queued, so actor and learner cannot deadlock.
        """
        envs, seq_len = self.ring.shape.num_envs, self.seq_len
        written = int(self.ring.written.sum()) + under_way - (self.length - seq_len) * envs
        ahead = envs + self.together
        if written - self.served * seq_len / self.reuse > ahead * seq_len + self.batch * seq_len / self.reuse:
            return False
        # The slots of the step in flight and of the next one, and one that `Ring.cut` may add.
        return self.fits(2 * SLOTS_A_STEP + 1)

    @locked
    def fits(self, slots: np.ndarray | int) -> bool:
        """Whether so many more slots (of each environment) overwrite no queued sequence."""
        if not self.queue and not self.waiting:
            return True
        oldest = self.ring.oldest(ahead=slots)
        owed = np.array([*self.queue, *self.waiting])
        return bool((owed[:, 1] * self.seq_len >= oldest[owed[:, 0]]).all())

    @locked
    def stats(self) -> dict[str, float]:
        """Mean number of uses per sequence so far; queued uses are not counted."""
        return {"reuse": self.served / max(self.arrived, 1)}

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Cursors, counters and the queue."""
        return {
            "done": self.blocks.done.tolist(),
            "queue": [list(item) for item in self.queue],
            "waiting": [list(item) for item in self.waiting],
            "served": self.served,
            "arrived": self.arrived,
            "rng": self.rng.bit_generator.state,
        }

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.blocks.done[:] = state["done"]
        self.queue = deque((env, block) for env, block in state["queue"])
        self.waiting = [(env, block) for env, block in state.get("waiting", [])]
        self.served, self.arrived = state["served"], state["arrived"]
        self.rng.bit_generator.state = state["rng"]


class PrioritizedSampler:
    """P(i) ∝ p_iᵅ over complete sequences; w_i = (n P(i))^-β / max w. New sequences get the largest priority seen.

    β is `importance`; with `anneal_over` > 0 it rises linearly from there to 1 over so many transitions.
    Once `min_fill` transitions have arrived, one batch is due per `batch · seq_len / reuse` new transitions.
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
        anneal_over: int = 0,
    ) -> None:
        self.lock = threading.RLock()
        self.ring, self.seq_len, self.length = ring, seq_len, burn_in + seq_len
        self.batch, self.reuse, self.rng = batch, reuse, rng
        self.exponent, self.importance, self.min_fill = exponent, importance, min_fill
        self.anneal_over = anneal_over
        self.before = 0  # transitions of a run that was resumed without its replay
        self.blocks = _Blocks(ring, seq_len, burn_in)
        self.per_env = ring.shape.capacity // seq_len
        self.tree = SumTree(self.per_env * ring.shape.num_envs)
        self.block_of = np.full(self.tree.capacity, -1, dtype=np.int64)  # block of each leaf; -1: none
        self.largest = 1.0
        self.arrived = 0
        self.served = 0
        self.credit = 0.0

    @locked
    def observe(self) -> None:
        """Add newly complete sequences; drop those that the actor is about to overwrite."""
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
        # The first block that the next step does not overwrite, even if `Ring.cut` adds a slot before it.
        first = -(-self.ring.oldest(ahead=SLOTS_A_STEP + 1) // self.seq_len)
        env = np.arange(self.tree.capacity) // self.per_env
        stale = np.flatnonzero((self.block_of >= 0) & (self.block_of < first[env]))
        if len(stale):
            self.tree.set(stale, np.zeros(len(stale)))
            self.block_of[stale] = -1

    @locked
    def ready(self) -> bool:
        """Whether a batch is due."""
        return self.credit >= 1

    @locked
    def next(self) -> Sample:
        """A batch sampled by priority, stratified."""
        self.credit -= 1
        self.served += self.batch
        leaves, probabilities = self.tree.sample(self.batch, self.rng)
        envs, blocks = leaves // self.per_env, self.block_of[leaves]
        batch = self.ring.gather(envs, blocks * self.seq_len, self.length)
        live = int((self.block_of >= 0).sum())
        weights = torch.as_tensor(importance_weights(probabilities, live, self._beta()), device=self.ring.device)
        return Sample(batch, weights.float(), envs, blocks)

    def _beta(self) -> float:
        if not self.anneal_over:
            return self.importance
        share = (self.before + self.arrived * self.seq_len) / self.anneal_over
        return self.importance + (1 - self.importance) * min(share, 1.0)

    @locked
    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """Set p_i of a sample's sequences; those dropped or replaced in the meantime are skipped."""
        raised = np.asarray(priorities, np.float64) ** self.exponent
        self.largest = max(self.largest, float(raised.max()))
        leaves = sample.envs * self.per_env + sample.blocks % self.per_env
        alive = self.block_of[leaves] == sample.blocks
        self.tree.set(leaves[alive], np.maximum(raised[alive], 1e-12))

    @locked
    def room(self, under_way: int = 0) -> bool:
        """Whether the learner is less than 64 batches behind."""
        return self.credit < 64

    @locked
    def fits(self, slots: np.ndarray | int) -> bool:
        """True: replay may always be overwritten. `observe` must follow before the next batch."""
        return True

    @locked
    def stats(self) -> dict[str, float]:
        """Mean number of uses per sequence, fill of the replay, and largest priority."""
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
            "before": self.before,
            "rng": self.rng.bit_generator.state,
        }

    @locked
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.blocks.done[:] = state["done"]
        self.block_of[:] = np.asarray(state["block_of"])
        self.tree.load_state_dict(state["tree"])
        self.largest, self.credit = state["largest"], state["credit"]
        self.arrived, self.served = state["arrived"], state["served"]
        self.before = state.get("before", 0)  # earlier versions have none
        self.rng.bit_generator.state = state["rng"]
