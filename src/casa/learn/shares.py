"""Split a batch into shares for several threads, and merge their results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from casa.heads import HeadOutput
from casa.rollout.ring import Batch

Grads = Sequence[Tensor | None]
"""One gradient per parameter; None if the loss does not use it."""


def split(batch: Batch, count: int) -> list[Batch]:
    """At most `count` nearly equal shares of the batch, split along B."""
    total = batch.rewards.shape[1]
    edges = [total * i // count for i in range(count + 1)]
    return [
        Batch(*(x[a:b] if name == "state" else x[:, a:b] for name, x in batch._asdict().items()))
        for a, b in itertools.pairwise(edges)
        if a < b
    ]


def join(outs: list[HeadOutput]) -> HeadOutput:
    """(V, Q, log π) [T, B, ...] of the whole batch: the shares concatenated along B."""
    columns = zip(*(out.tensors() for out in outs), strict=True)
    return outs[0].with_tensors([torch.cat(parts, 1) for parts in columns])


def pieces(slopes: Grads, sizes: list[int]) -> list[Grads]:
    """Each share's part of every slope ∂loss/∂output [T, B, ...], split along B; None stays None."""
    cut = [[None] * len(sizes) if slope is None else slope.split(sizes, 1) for slope in slopes]
    return list(zip(*cut, strict=True))


def add(parts: list[Grads]) -> Grads:
    """The sum of the shares' gradients per parameter, always in the same order, so that it is deterministic."""
    total = list(parts[0])
    for part in parts[1:]:
        pairs = [(a, b) for a, b in zip(total, part, strict=True) if a is not None and b is not None]
        torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
    return total
