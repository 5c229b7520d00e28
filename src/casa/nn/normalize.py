"""Observation normalisation: running moments that travel with the network's weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ObsNorm(nn.Module):
    """x -> clip((x - mean) / std, -10, 10), with mean and std of all observations [*shape] seen so far.

    The moments are buffers: the learner updates them from its batches, and the actors get them with the weights.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised observations [..., *shape]."""
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-10, 10)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Merge the moments of x [..., *shape] into the running ones; static, for CUDA graphs."""
        x = x.float().reshape(-1, *self.mean.shape)
        n = float(len(x))
        total = self.count + n
        mean, var = x.mean(0), x.var(0, correction=0)
        shift = mean - self.mean
        self.var.copy_((self.count * self.var + n * var + shift**2 * self.count * n / total) / total)
        self.mean.add_(shift * n / total)
        self.count.copy_(total)
