"""From Gymnasium spaces to network inputs: vectors and grids in float32, images in uint8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from casa.actions import ActionSpec
from casa.envs.types import Array, EnvError, ObsKind, ObsSpec

SMALLEST_IMAGE = 20
"""Smallest height and width, in pixels, of an image; the Atari networks need as many."""
_LARGEST_RANGE = 1e6
_LARGEST_ACTION = 1e6


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


def action_spec(space: Space[Any], name: str, bound: float = 0.0) -> ActionSpec:
    """Discrete(n): one choice of n; MultiDiscrete and MultiBinary: several; Box: continuous; Dict and Tuple: all parts.

    A Box without bounds of its own is limited to -bound .. bound. Any other space is an EnvError.
    """
    if isinstance(space, Discrete):
        return ActionSpec.discrete(int(space.n), int(space.start))
    if isinstance(space, MultiDiscrete):
        options, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        return ActionSpec("multi-discrete", tuple(options), tuple(starts), tuple(space.nvec.shape))
    if isinstance(space, MultiBinary):
        count = prod(space.shape)
        return ActionSpec("multi-binary", (2,) * count, (0,) * count, tuple(space.shape))
    if isinstance(space, Box) and space.dtype.kind == "f" and space.low.size:
        return _box(space, name, bound)
    if isinstance(space, Dict) and space.spaces:
        parts = tuple(action_spec(part, name, bound) for part in space.spaces.values())
        return ActionSpec.group("dict", tuple(space.spaces), parts)
    if isinstance(space, Tuple) and space.spaces:
        return ActionSpec.group("tuple", (), tuple(action_spec(part, name, bound) for part in space.spaces))
    raise EnvError(
        f"{name}: action space {_short(space)} is not supported; CASA acts in Discrete(n), MultiDiscrete, MultiBinary, "
        "Box of floats, and Dict or Tuple of these"
    )


def _box(space: Box, name: str, bound: float) -> ActionSpec:
    low, high = (x.astype(np.float64) for x in (space.low, space.high))
    # Bounds such as 3.4e38 stand for none: a density over them is of no use.
    low, high = np.where(low < -_LARGEST_ACTION, -bound, low), np.where(high > _LARGEST_ACTION, bound, high)
    if not (low < high).all():
        if not bound:
            raise EnvError(
                f"{name}: action space {_short(space)} has no bounds, and CASA acts between bounds; "
                "limit it with --env.action-bound, for instance 1"
            )
        raise EnvError(f"{name}: action space {_short(space)} and env.action_bound {bound:g} leave no actions between")
    return ActionSpec.box(low, high)


def encoder(space: Space[Any], name: str) -> Encoder:
    """The encoder of observations of `space`; see `encoder_of`."""
    return encoder_of(observation_spec(space, name), name)


def observation_spec(space: Space[Any], name: str) -> ObsSpec:
    """`space` as plain data; EnvError if it is not supported."""
    if isinstance(space, Discrete):
        first = int(space.start)
        return ObsSpec("discrete", (), np.dtype(space.dtype).name, (first,), (first + int(space.n) - 1,))
    if not isinstance(space, Box):
        raise EnvError(f"{name}: observation space {_short(space)} is not supported; {_advice(space)}")
    if space.dtype.kind not in "biuf":
        raise EnvError(f"{name}: observations of dtype {space.dtype} are not supported; use float32 or uint8")
    if prod(space.shape) == 0:
        raise EnvError(f"{name}: observation space {space} holds no numbers")
    low, high = (_bounds(bound) for bound in (space.low, space.high))
    return ObsSpec("box", tuple(space.shape), space.dtype.name, low, high)


def encoder_of(spec: ObsSpec, name: str) -> Encoder:
    """The encoder from observations [N, *spec.shape] to network inputs.

    Discrete(n) is one-hot encoded, [n]. A Box of uint8 planes of at least 20 x 20 is an image. Other Boxes with three
    axes, [H, W, C] or [C, H, W], are grids; those with one or two axes are vectors. The channel axis is the shorter of
    the first and the last axis, and the last one on a tie. Bounded integers are scaled to 0 .. 1, except in images.
    """
    if spec.space == "discrete":
        first, count = int(spec.low[0]), int(spec.high[0] - spec.low[0]) + 1
        return Encoder("vector", (count,), lambda x: _one_hot(x, first, count))
    to_planes = _planes(spec.shape)
    if to_planes is not None and spec.dtype == "uint8":
        _, height, width = to_planes[0]
        if min(height, width) >= SMALLEST_IMAGE:
            return Encoder("image", *to_planes)
    scale = _scale(spec)
    if to_planes is not None and len(spec.shape) == 3:
        shape, arrange = to_planes
        return Encoder("grid", shape, lambda x: arrange(scale(x)))
    if len(spec.shape) <= 2:
        size = prod(spec.shape)
        return Encoder("vector", (size,), lambda x: scale(x).reshape(len(x), size))
    raise EnvError(f"{name}: observations of shape {spec.shape} have {len(spec.shape)} axes; CASA reads up to 3")


def _short(space: Space[Any]) -> str:
    text = str(space)
    return text if len(text) <= 120 else f"{type(space).__name__} ({len(text)} characters)"


def _advice(space: Space[Any]) -> str:
    """How a user can work around an unsupported space."""
    if isinstance(space, (Dict, Tuple)):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        boxes = {key: prod(part.shape or ()) for key, part in parts if isinstance(part, (Box, Discrete))}
        if boxes:
            largest = max(boxes, key=lambda key: boxes[key])
            return (
                f"write a make_env that picks one part, for instance [{largest!r}], with "
                "gymnasium.wrappers.TransformObservation, and train on my_module:make_env"
            )
    return "CASA reads Box and Discrete: write a make_env that wraps it, and train on my_module:make_env"


def _bounds(values: Array) -> tuple[float, ...]:
    first = float(values.flat[0])
    return (first,) if (values == values.flat[0]).all() else tuple(values.astype(np.float64).ravel().tolist())


def _planes(shape: tuple[int, ...]) -> tuple[tuple[int, int, int], Callable[[Array], Array]] | None:
    """((C, H, W), function from [N, *shape] to [N, C, H, W]); None unless `shape` has two or three axes."""
    if len(shape) == 2:
        return (1, *shape), lambda x: x[:, None]
    if len(shape) == 3 and shape[0] < shape[2]:
        return shape, lambda x: x
    if len(shape) == 3:
        height, width, channels = shape
        return (channels, height, width), lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return None


def _scale(spec: ObsSpec) -> Callable[[Array], Array]:
    """x -> (x - low) / (high - low) for bounded integers, else x; always float32."""
    low, high = (np.resize(bound, spec.shape) for bound in (spec.low, spec.high))  # a single bound holds everywhere
    span = high - low
    bounded = (span > 0) & (span <= _LARGEST_RANGE)
    if np.dtype(spec.dtype).kind not in "iu" or not bounded.any():
        return lambda x: x.astype(np.float32, copy=False)
    offset = np.where(bounded, low, 0).astype(np.float32)
    unit = np.where(bounded, span, 1).astype(np.float32)
    return lambda x: (x.astype(np.float32) - offset) / unit


def _one_hot(x: Array, first: int, count: int) -> Array:
    rows = np.zeros((len(x), count), np.float32)
    rows[np.arange(len(x)), x - first] = 1
    return rows
