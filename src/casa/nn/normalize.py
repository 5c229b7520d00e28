"""Observation normalisation: running moments that travel with the network's weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ObsNorm(nn.Module):
    """x -> clip((x - mean) / std, -10, 10), with mean and std of all observations [*shape] seen so far.

    Grids [C, H, W] have one mean and one std per channel. The moments are buffers: the learner updates them from its
    batches, and the actors get them with the weights.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.over = (0, 2, 3) if len(shape) == 3 else (0,)
        moments = (shape[0], 1, 1) if len(shape) == 3 else shape
        self.register_buffer("mean", torch.zeros(moments))
        self.register_buffer("var", torch.ones(moments))
        self.register_buffer("count", torch.zeros(()))
        if len(shape) == 3:
            self.register_load_state_dict_pre_hook(_add_moments)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """Normalised observations [..., *shape]."""
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-10, 10)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Merge the moments of x [..., *shape] into the running ones; static, for CUDA graphs."""
        x = x.float().reshape(-1, *self.shape)
        n = float(len(x))
        total = self.count + n
        mean, var = (y.reshape(self.mean.shape) for y in (x.mean(self.over), x.var(self.over, correction=0)))
        shift = mean - self.mean
        self.var.copy_((self.count * self.var + n * var + shift**2 * self.count * n / total) / total)
        self.mean.add_(shift * n / total)
        self.count.copy_(total)


def _add_moments(norm: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Weights that were saved before grids were normalised have moments that change nothing."""
    assert isinstance(norm, ObsNorm)
    for name, initial in ObsNorm(norm.shape).named_buffers():
        state.setdefault(f"{prefix}{name}", initial)
