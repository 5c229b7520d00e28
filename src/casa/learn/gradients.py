"""The table of gradients: how the gradients of L_V, L_Q and J become the one that the optimizer follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from casa import tables
from casa.learn.shares import Grads

Combination = Callable[[Sequence[Grads]], Grads]
"""Gradients of the weighted losses, each one per parameter -> one gradient per parameter."""


def added(gradients: Sequence[Grads]) -> Grads:
    """Σ_i g_i. The learner computes it as the gradient of the sum, in one backward pass."""
    found: list[torch.Tensor | None] = []
    for parts in zip(*gradients, strict=True):
        used = [x for x in parts if x is not None]
        found.append(sum(used[1:], used[0]) if used else None)
    return found


def pcgrad(gradients: Sequence[Grads]) -> Grads:
    """Σ_i g'_i, where g'_i starts as g_i and, for every j ≠ i in order, g'_i ← g'_i - min(0, ⟨g'_i, g_j⟩)/|g_j|² g_j.

    PCGrad (Yu et al., 2020): of two gradients in conflict each loses the part that is against the other. With more than
    two the publication draws the order of j at random; here it is that of the losses, so that runs repeat.
    """
    projected = []
    for i, mine in enumerate(gradients):
        for j, other in enumerate(gradients):
            if j != i:
                square = _product(other, other)
                share = _product(mine, other).clamp(max=0) / square.clamp(min=torch.finfo(square.dtype).tiny)
                pairs = zip(mine, other, strict=True)
                mine = [a if b is None else (0 if a is None else a) - share * b for a, b in pairs]
        projected.append(mine)
    return added(projected)


def _product(a: Grads, b: Grads) -> torch.Tensor:
    """⟨a, b⟩ over all parameters; 0 if they have none in common."""
    each = [(x * y).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return torch.stack(each).sum() if each else torch.zeros(())


GRADIENTS: tables.Table[Combination] = tables.GRADIENTS
GRADIENTS.add("sum", added, __name__)
GRADIENTS.add("pcgrad", pcgrad, __name__)
