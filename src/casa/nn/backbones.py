"""Backbones: from observations [N, *obs_shape] to features [N, features].

Everything with parameters is an `nn.Linear` or an `nn.Conv2d`, so that per-state gradient inner products
have a closed form (see `casa.diagnostics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from casa import tables


class PixelConv2d(nn.Conv2d):
    """y = W * (x · input_scale) + b: a convolution over raw bytes; the weight is scaled, since it is the smaller."""

    input_scale = 1 / 255

    def forward(self, x: Tensor) -> Tensor:
        """Convolve raw pixels 0..255 as if they had been divided by 255."""
        weight = self.weight * self.input_scale
        if x.is_cuda and (odd := -x.shape[1] % 8):  # tensor cores need multiples of 8 channels
            x, weight = (F.pad(y, (0, 0, 0, 0, 0, odd)) for y in (x, weight))
        return self._conv_forward(x, weight, self.bias)


def as_input(x: Tensor, layer: nn.Conv2d | nn.Linear) -> Tensor:
    """x in the dtype that `layer` computes in: autocast's if enabled, else the weight's.

    Bytes are not scaled here; bf16 represents 0..255 exactly.
    """
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else layer.weight.dtype)


def space_to_depth(x: Tensor, block: int) -> Tensor:
    """[N, C, H, W] to [N, block·block·C, H/block, W/block] in channels_last, cropping to multiples of `block`.

    A k·block x k·block convolution with stride `block` on x is a k x k convolution with stride 1 on the result.
    """
    n, c, h, w = x.shape
    h, w = h // block, w // block
    x = x[:, :, : h * block, : w * block].permute(0, 2, 3, 1)
    x = x.reshape(n, h, block, w, block, c).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h, w, block * block * c).permute(0, 3, 1, 2)


def pixel_blocks(obs: Tensor) -> Tensor:
    """Space-to-depth of bytes [N, C, H, W] by blocks of 4x4 to [N, C·16, H/4, W/4], channels in order (c, dy, dx).

    Four pixels of a row are moved as one 32-bit word, so that a quarter as many elements are permuted.
    """
    n, c, h, w = obs.shape
    h, w = h // 4, w // 4
    if torch.compiler.is_exporting():  # other runtimes cannot view bytes as 32-bit words
        blocks = obs[:, :, : 4 * h, : 4 * w].reshape(n, c, h, 4, w, 4).permute(0, 2, 4, 1, 3, 5)
        return blocks.reshape(n, h, w, c * 16).permute(0, 3, 1, 2)
    words = obs[:, :, : 4 * h, : 4 * w].contiguous().view(torch.int32)  # [N, C, 4h, w]
    words = words.view(n, c, h, 4, w).permute(0, 2, 4, 1, 3).contiguous()  # [N, h, w, C, dy]
    return words.view(torch.uint8).view(n, h, w, c * 16).permute(0, 3, 1, 2)


def keep_scale(backbone: nn.Module) -> None:
    """W ~ N(0, 2 / fan-in), b = 0 in every layer, so that no layer shrinks the signal.

    With torch's default initialisation it shrinks in each, to features below 0.1. The contribution of a few pixels,
    such as a ball, is then negligible beside the biases.
    """
    for name, weight in backbone.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(weight)
        else:
            nn.init.kaiming_normal_(weight, nonlinearity="relu")


class ImpalaShallow(nn.Module):
    """conv 8x8/4 16, conv 4x4/2 32, FC 256 (Espeholt et al. 2018, fig. 3 left), on bytes [N, C, H, W].

    Both run as 2x2 convolutions after space-to-depth: the same function with permuted weights.
    """

    def __init__(self, obs_shape: tuple[int, ...], features: int = 256) -> None:
        super().__init__()
        channels, height, width = obs_shape
        self.conv1 = PixelConv2d(channels * 16, 16, 2)
        self.conv2 = nn.Conv2d(16 * 4, 32, 2)
        side = [(s // 4 - 1) // 2 - 1 for s in (height, width)]
        if min(side) < 1:
            raise ValueError(f"impala-shallow needs images of at least 20x20 pixels, got {height}x{width}")
        self.linear = nn.Linear(32 * side[0] * side[1], features)
        self.features = features
        keep_scale(self)

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, 256] of byte images [N, C, H, W]."""
        x = F.relu(self.conv1(as_input(pixel_blocks(obs), self.conv1)))
        x = F.relu(self.conv2(space_to_depth(x, 2)))
        return F.relu(self.linear(x.permute(0, 2, 3, 1).flatten(1)))


class Nature(nn.Module):
    """conv 8x8/4 32, conv 4x4/2 64, conv 3x3/1 64, FC (512 in Mnih et al. 2015), on bytes [N, C, H, W].

    The first two run as 2x2 convolutions after space-to-depth: the same function with permuted weights. With `features`
    None there is no FC layer: the features are the 3136 numbers (of 84x84 pixels) of the last convolution.
    """

    def __init__(self, obs_shape: tuple[int, ...], features: int | None = 512) -> None:
        super().__init__()
        channels, height, width = obs_shape
        self.conv1 = PixelConv2d(channels * 16, 32, 2)
        self.conv2 = nn.Conv2d(32 * 4, 64, 2)
        self.conv3 = nn.Conv2d(64, 64, 3)
        side = [(s // 4 - 1) // 2 - 3 for s in (height, width)]
        if min(side) < 1:
            raise ValueError(f"nature needs images of at least 36x36 pixels, got {height}x{width}")
        count = 64 * side[0] * side[1]
        self.linear = None if features is None else nn.Linear(count, features)
        self.features = count if features is None else features
        keep_scale(self)

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, features] of byte images [N, C, H, W]."""
        x = F.relu(self.conv1(as_input(pixel_blocks(obs), self.conv1)))
        x = F.relu(self.conv2(space_to_depth(x, 2)))
        x = F.relu(self.conv3(x)).permute(0, 2, 3, 1).flatten(1)
        return x if self.linear is None else F.relu(self.linear(x))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class _Section(nn.Module):
    def __init__(self, first: nn.Conv2d) -> None:
        super().__init__()
        self.conv = first
        self.blocks = nn.Sequential(_Residual(first.out_channels), _Residual(first.out_channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(F.max_pool2d(self.conv(x), 3, stride=2, padding=1))
        return out


class ImpalaDeep(nn.Module):
    """Three sections of conv 3x3, max-pool 3x3/2 and two residual blocks (16, 32, 32 channels), ReLU, FC 256.

    Espeholt et al. 2018, fig. 3 right.
    """

    def __init__(self, obs_shape: tuple[int, ...], features: int = 256) -> None:
        super().__init__()
        channels, height, width = obs_shape
        self.sections = nn.Sequential(
            _Section(PixelConv2d(channels, 16, 3, padding=1)),
            _Section(nn.Conv2d(16, 32, 3, padding=1)),
            _Section(nn.Conv2d(32, 32, 3, padding=1)),
        )
        side = [-(-s // 8) for s in (height, width)]
        self.linear = nn.Linear(32 * side[0] * side[1], features)
        self.features = features
        keep_scale(self)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, _Residual):
                    module.conv2.weight.mul_(0.5)

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, 256] of byte images [N, C, H, W]."""
        x = as_input(obs, self.linear).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.sections(x))
        return F.relu(self.normalise(self.linear(x.permute(0, 2, 3, 1).flatten(1))))

    def normalise(self, x: Tensor) -> Tensor:
        """What the last ReLU is applied to."""
        return x


class ImpalaNorm(ImpalaDeep):
    """`ImpalaDeep` with LayerNorm (without weights) before the last ReLU: bounded features, as in `NormMLP`."""

    def normalise(self, x: Tensor) -> Tensor:
        """Zero mean and unit variance over the features."""
        return F.layer_norm(x, (self.features,))


class GridNet(nn.Module):
    """conv 3x3 16, FC 256 on small grids [N, C, H, W] (MinAtar: 10x10)."""

    def __init__(self, obs_shape: tuple[int, ...], features: int = 256) -> None:
        super().__init__()
        channels, height, width = obs_shape
        if min(height, width) < 3:
            raise ValueError(f"grid needs at least 3x3 cells, got {height}x{width}")
        self.conv = nn.Conv2d(channels, 16, 3)
        self.linear = nn.Linear(16 * (height - 2) * (width - 2), features)
        self.features = features

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, 256] of grids [N, C, H, W]."""
        x = F.relu(self.conv(as_input(obs, self.conv)))
        return F.relu(self.linear(x.permute(0, 2, 3, 1).flatten(1)))


class MLP(nn.Module):
    """Two FC layers with ReLU on flat observations [N, ...]."""

    def __init__(self, obs_shape: tuple[int, ...], features: int = 256) -> None:
        super().__init__()
        size = 1
        for extent in obs_shape:
            size *= extent
        self.linear1 = nn.Linear(size, features)
        self.linear2 = nn.Linear(features, features)
        self.features = features

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, features] of observations [N, ...]."""
        return F.relu(self.linear2(F.relu(self.linear1(as_input(obs, self.linear1).flatten(1)))))


class NormMLP(nn.Module):
    """Two FC layers, each with LayerNorm (without weights) and ReLU, on flat observations [N, ...].

    Bounded features bound Q where there is no data, and so what a Q-learner bootstraps from.
    """

    def __init__(self, obs_shape: tuple[int, ...], features: int = 256) -> None:
        super().__init__()
        self.linear1 = nn.Linear(math.prod(obs_shape), features)
        self.linear2 = nn.Linear(features, features)
        self.features = features

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, features] of observations [N, ...]."""
        x = as_input(obs, self.linear1).flatten(1)
        for layer in (self.linear1, self.linear2):
            x = F.relu(F.layer_norm(layer(x), (self.features,)))
        return x


class TanhMLP(nn.Module):
    """Two FC layers with tanh and orthogonal weights on flat observations [N, ...].

    Bounded features cannot all grow with V's mean. On CartPole the same settings with ReLU stall (docs/training.md).
    """

    def __init__(self, obs_shape: tuple[int, ...], features: int = 64) -> None:
        super().__init__()
        self.linear1 = nn.Linear(math.prod(obs_shape), features)
        self.linear2 = nn.Linear(features, features)
        self.features = features
        for layer in (self.linear1, self.linear2):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, features] of observations [N, ...]."""
        return torch.tanh(self.linear2(torch.tanh(self.linear1(as_input(obs, self.linear1).flatten(1)))))


@dataclass(frozen=True)
class Backbone:
    """`make(obs_shape, features)` returns a module from observations [N, *obs_shape] to features [N, features].

    A module whose attribute `features` is another number has so many.
    `reads`: kinds of observations that it supports (vector, grid, image). `deep`: worth compiling on a GPU.
    """

    make: Callable[[tuple[int, ...], int], nn.Module]
    reads: tuple[str, ...]
    deep: bool = False

    def __call__(self, obs_shape: tuple[int, ...], features: int = 256) -> nn.Module:
        """A new module with random weights."""
        return self.make(obs_shape, features)


BACKBONES: tables.Table[Backbone] = tables.BACKBONES
for _name, _backbone in {
    "impala-shallow": Backbone(ImpalaShallow, ("image",)),
    "impala-deep": Backbone(ImpalaDeep, ("image",), deep=True),
    "impala-norm": Backbone(ImpalaNorm, ("image",), deep=True),
    "nature": Backbone(Nature, ("image",)),
    "nature-conv": Backbone(lambda obs_shape, features: Nature(obs_shape, None), ("image",)),
    "grid": Backbone(GridNet, ("grid",)),
    "mlp": Backbone(MLP, ("vector", "grid", "image")),
    "mlp-norm": Backbone(NormMLP, ("vector", "grid")),
    "mlp-tanh": Backbone(TanhMLP, ("vector", "grid")),
}.items():
    BACKBONES.add(_name, _backbone, __name__)
