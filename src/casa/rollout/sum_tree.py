"""Prioritized replay of sequences: a sum tree to draw from, R2D2's priority, and importance weights."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

# Children per node. NumPy's cost here is per call, not per element, so a flat tree is faster than a binary
# one: 10,000 leaves are 3 levels of 32 instead of 14 levels of 2.
FANOUT = 32


class SumTree:
    """P(i) = p_i / Σ_j p_j over `capacity` leaves; a batch is drawn or updated level by level.

    `levels[0]` holds the leaves as rows of FANOUT siblings, and entry k of `levels[l + 1]` is the sum of
    row k of `levels[l]`; the last level is one row. A sum is always recomputed from its row, never adjusted by a
    difference, so rounding errors do not accumulate and the leaves alone determine every sum, bitwise.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        # Below this limit the sum of all leaves stays finite.
        self._limit = np.finfo(np.float64).max / (capacity + 1)
        rows = -(-capacity // FANOUT)
        self._levels = [np.zeros((rows, FANOUT))]
        while rows > 1:
            rows = -(-rows // FANOUT)
            self._levels.append(np.zeros((rows, FANOUT)))

    @property
    def total(self) -> float:
        """Σ_j p_j."""
        return float(self._levels[-1].sum())

    def get(self, indices: ArrayLike) -> NDArray[np.float64]:
        """p_i for each index, [n]."""
        return self._levels[0].reshape(-1)[self._checked(indices)]

    def set(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """p_i ← priority for each index, [n] and [n]; if an index is repeated, its last priority counts.

        The exponent of prioritized replay is applied by the caller. Priority 0 means "never drawn".
        """
        nodes = self._checked(indices)
        values = np.asarray(priorities, dtype=np.float64)
        if values.shape != nodes.shape:
            raise ValueError(f"priorities have shape {values.shape}, indices {nodes.shape}")
        wrong = ~((values >= 0) & (values <= self._limit))  # NaN is wrong too
        if wrong.any():
            raise ValueError(f"priorities must be finite and >= 0, got {values[wrong][0]}")
        self._levels[0].reshape(-1)[nodes] = values
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            nodes = nodes // FANOUT
            above.reshape(-1)[nodes] = level[nodes].sum(1)

    def sample(
        self, n: int, generator: np.random.Generator, stratified: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """n indices i ~ P with replacement, [n], and their P(i), [n].

        Stratified: draw k comes from the k-th of n equal slices of the total mass, so the expected
        frequencies are the same and their variance is smaller. A leaf of priority 0 is never returned.
        """
        total = self.total
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        if not total > 0:
            raise ValueError("cannot sample from a sum tree whose priorities are all 0")
        uniform = generator.random(n)
        mass = (np.arange(n) + uniform) * (total / n) if stratified else uniform * total
        node = np.zeros(n, dtype=np.int64)
        rows = np.arange(n)
        edges = np.zeros((n, FANOUT + 1))
        for level in reversed(self._levels):
            np.cumsum(level[node], axis=1, out=edges[:, 1:])
            # Rounding can put the mass on or past the last edge. Clamped just below it, the mass always has an edge
            # above it, and the child before the first such edge has width > 0.
            np.minimum(mass, np.nextafter(edges[:, -1], 0.0), out=mass)
            child = (edges[:, 1:] <= mass[:, None]).sum(1)
            mass -= edges[rows, child]
            node = node * FANOUT + child
        return node, self._levels[0].reshape(-1)[node] / total

    def state_dict(self) -> dict[str, Tensor]:
        """The leaves, [capacity] float64; all sums are recomputed from them."""
        return {"priorities": torch.from_numpy(self._levels[0].reshape(-1)[: self.capacity].copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Rebuild the tree from the leaves `state["priorities"]`, bitwise equal to the saved one."""
        priorities = state["priorities"].cpu().numpy()
        if priorities.shape != (self.capacity,):
            raise ValueError(f"state has {priorities.shape} priorities, this tree {self.capacity}")
        self.set(np.arange(self.capacity), priorities)

    def _checked(self, indices: ArrayLike) -> NDArray[np.int64]:
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(f"indices must be a vector of integers, got {given.dtype} {given.shape}")
        if given.size and not (given.min() >= 0 and given.max() < self.capacity):
            raise ValueError(f"indices must lie in [0, {self.capacity}), got {given.min()} to {given.max()}")
        return given.astype(np.int64)


def sequence_priority(td_errors: Tensor, mask: Tensor, eta: float = 0.9) -> Tensor:
    """p = η max_t |δ_t| + (1 - η) mean_t |δ_t| over the steps where `mask` holds (R2D2).

    Shapes: `td_errors` and `mask` [T, B], result [B], detached and on the same device.

    A sequence with no valid step has priority 0; values at masked steps are ignored, even NaN.
    """
    if td_errors.shape != mask.shape or td_errors.ndim != 2:
        raise ValueError(
            f"td_errors {tuple(td_errors.shape)} and mask {tuple(mask.shape)} must share one shape [T, B]"
        )
    valid = mask.bool()
    size = td_errors.detach().abs()
    size = torch.where(valid, size if size.dtype == torch.float64 else size.float(), 0.0)
    mean = size.sum(0) / valid.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * mean


def importance_weights(probabilities: NDArray[np.float64], size: int, beta: float) -> NDArray[np.float32]:
    """w_i = (N P(i))^-β / max_j (N P(j))^-β over the batch, with N = `size` leaves that can be drawn.

    Shapes: `probabilities` [n], result [n] in (0, 1]. N cancels in the division by the maximum; it keeps the power near
    1, far from overflow.
    """
    scaled = size * np.asarray(probabilities, dtype=np.float64)
    if not (scaled > 0).all():
        raise ValueError("importance weights need probabilities > 0 and size >= 1")
    weights: NDArray[np.float64] = np.power(scaled, -beta)
    return (weights / weights.max()).astype(np.float32)
