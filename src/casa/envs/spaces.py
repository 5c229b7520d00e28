"""From a Gymnasium space to what the networks read: vectors and grids in float32, images in uint8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete

from casa.envs.types import Array, EnvError, ObsKind

SMALLEST_IMAGE = 20
"""Pixels of height and width from which uint8 planes are an image; the Atari networks need as many."""
_LARGEST_RANGE = 1e6


@dataclass(frozen=True)
class Encoder:
    """x [N, *space.shape] -> network input [N, *shape]; `encode` may return a view of its argument."""

    kind: ObsKind
    shape: tuple[int, ...]
    encode: Callable[[Array], Array]

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.float32]:
        """uint8 for images, float32 for everything else."""
        return np.dtype(np.uint8) if self.kind == "image" else np.dtype(np.float32)


def num_actions(space: Space[Any], name: str) -> tuple[int, int]:
    """(n, start) of Discrete(n, start); anything else is refused."""
    if isinstance(space, Discrete):
        return int(space.n), int(space.start)
    kind = "continuous" if isinstance(space, Box) else "not Discrete"
    raise EnvError(f"{name}: action space {space} is {kind}; CASA needs discrete actions, Discrete(n)")


def encoder(space: Space[Any], name: str) -> Encoder:
    """How observations of `space` are read.

    Discrete(n): one-hot [n]. Box: uint8 planes of at least 20 x 20 are an image, other planes [H, W, C] or
    [C, H, W] a grid, anything with one or two axes a vector. The channel axis is the smaller one of the first and
    the last; of two equal ones, the last. Bounded integers that are not an image are scaled to 0 .. 1 by their bounds.
    """
    if isinstance(space, Discrete):
        return Encoder("vector", (int(space.n),), _one_hot(space))
    if not isinstance(space, Box):
        raise EnvError(
            f"{name}: observation space {space} is not supported; CASA reads Box and Discrete "
            "(gymnasium.wrappers.FlattenObservation makes one Box of a Dict or Tuple)"
        )
    if space.dtype.kind not in "biuf":
        raise EnvError(f"{name}: observations of dtype {space.dtype} are not supported; use float32 or uint8")
    if prod(space.shape) == 0:
        raise EnvError(f"{name}: observation space {space} holds no numbers")
    to_planes = _planes(space.shape)
    if to_planes is not None and space.dtype == np.uint8:
        _, height, width = to_planes[0]
        if min(height, width) >= SMALLEST_IMAGE:
            return Encoder("image", *to_planes)
    scale = _scale(space)
    if to_planes is not None and len(space.shape) == 3:
        shape, arrange = to_planes
        return Encoder("grid", shape, lambda x: arrange(scale(x)))
    if len(space.shape) <= 2:
        size = prod(space.shape)
        return Encoder("vector", (size,), lambda x: scale(x).reshape(len(x), size))
    raise EnvError(f"{name}: observation space {space} has {len(space.shape)} axes; CASA reads up to 3")


def _planes(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], Callable[[Array], Array]] | None:
    """((C, H, W), how to get there from [N, *shape]) for shapes that can be planes."""
    if len(shape) == 2:
        return (1, *shape), lambda x: x[:, None]
    if len(shape) == 3 and shape[0] < shape[2]:
        return shape, lambda x: x
    if len(shape) == 3:
        height, width, channels = shape
        return (channels, height, width), lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return None


def _scale(space: Box) -> Callable[[Array], Array]:
    """x -> (x - low) / (high - low) for integers with true bounds, else x; always float32."""
    low = space.low.astype(np.float64)
    span = space.high.astype(np.float64) - low
    bounded = (span > 0) & (span <= _LARGEST_RANGE)
    if space.dtype.kind not in "iu" or not bounded.any():
        return lambda x: x.astype(np.float32, copy=False)
    offset = np.where(bounded, low, 0).astype(np.float32)
    unit = np.where(bounded, span, 1).astype(np.float32)
    return lambda x: (x.astype(np.float32) - offset) / unit


def _one_hot(space: Discrete) -> Callable[[Array], Array]:
    start, rows = int(space.start), np.eye(int(space.n), dtype=np.float32)
    return lambda x: rows[x - start]
