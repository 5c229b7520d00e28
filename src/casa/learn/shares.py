"""A batch in shares for several threads, and their results as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from casa.heads import HeadOutput
from casa.rollout.ring import Batch

Grads = Sequence[Tensor | None]
"""By parameter; None where it has no part in the loss."""


def split(batch: Batch, count: int) -> list[Batch]:
    """At most `count` nearly equal shares of the sequences."""
    total = batch.rewards.shape[1]
    edges = [total * i // count for i in range(count + 1)]
    return [
        Batch(*(x[a:b] if name == "state" else x[:, a:b] for name, x in batch._asdict().items()))
        for a, b in itertools.pairwise(edges)
        if a < b
    ]


def join(outs: list[HeadOutput]) -> HeadOutput:
    """(V, Q, log π) [T, B, ...] of all shares, side by side."""
    columns = zip(*(out.tensors() for out in outs), strict=True)
    return outs[0].with_tensors([torch.cat(parts, 1) for parts in columns])


def pieces(slopes: Grads, sizes: list[int]) -> list[Grads]:
    """For each share its part of every slope [T, B, ...], where there is one."""
    cut = [[None] * len(sizes) if slope is None else slope.split(sizes, 1) for slope in slopes]
    return list(zip(*cut, strict=True))


def add(parts: list[Grads]) -> Grads:
    """Gradients by parameter, added in the order of their shares."""
    total = list(parts[0])
    for part in parts[1:]:
        pairs = [(a, b) for a, b in zip(total, part, strict=True) if a is not None and b is not None]
        torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
    return total
