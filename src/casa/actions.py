"""Action spaces with one or several discrete choices, and the layout of values over their options.

A policy over several choices is factored: A(s, a) = Σ_d A_d(s, a_d) gives π = ∏_d softmax(A_d/τ). The outputs of all
choices are concatenated in one axis [..., n_1 + ... + n_D], with `sizes` = (n_1, ..., n_D). If `sizes` is None there
is one choice, and an action is a single integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Sizes = tuple[int, ...] | None
ActionKind = Literal["discrete", "multi-discrete", "multi-binary"]


@dataclass(frozen=True)
class ActionSpec:
    """An action space of D choices; choice d has `choices[d]` options, which the environment numbers from `starts[d]`.

    `shape` is the shape of one action in the environment, () for a single integer. Inside CASA options are numbered
    from 0, and an action is one integer (discrete) or a flat vector of D integers.
    """

    kind: ActionKind
    choices: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...] = ()

    @classmethod
    def discrete(cls, count: int, start: int = 0) -> ActionSpec:
        """One choice of `count` options."""
        return cls("discrete", (count,), (start,))

    @classmethod
    def load(cls, saved: dict[str, Any]) -> ActionSpec:
        """From the dictionary of `dataclasses.asdict`, after a round trip through JSON."""
        tuples = {name: tuple(int(x) for x in saved[name]) for name in ("choices", "starts", "shape")}
        return cls(saved["kind"], **tuples)

    @property
    def sizes(self) -> Sizes:
        """Numbers of options (n_1, ..., n_D), the layout of the outputs; None for a single integer."""
        return None if self.kind == "discrete" else self.choices

    @property
    def width(self) -> int:
        """Number of network outputs for one function of the action, such as Q: n_1 + ... + n_D."""
        return sum(self.choices)

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """Shape of one action inside CASA: () or (D,)."""
        return () if self.kind == "discrete" else (len(self.choices),)

    @property
    def dtype(self) -> torch.dtype:
        """The smallest integer type that holds every option."""
        return torch.int16 if max(self.choices) <= 2**15 else torch.int32

    def __str__(self) -> str:
        if self.kind == "discrete":
            return f"{self.choices[0]} actions"
        if self.kind == "multi-binary":
            return f"{len(self.choices)} binary actions"
        shown = " x ".join(map(str, self.choices[:6])) + (" x ..." if len(self.choices) > 6 else "")
        return f"{shown} actions"

    def random(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Uniform actions [count, *flat_shape]."""
        if self.kind == "discrete":
            return rng.integers(0, self.choices[0], count)
        return rng.integers(0, self.choices, (count, len(self.choices)))

    def check(self, actions: npt.NDArray[Any], count: int) -> None:
        """ValueError unless `actions` are integers [count, *flat_shape], each from 0 to its number of options - 1."""
        if actions.shape != (count, *self.flat_shape) or actions.dtype.kind not in "iu":
            wanted = f"{count} integers" if self.kind == "discrete" else f"{count} x {len(self.choices)} integers"
            raise ValueError(f"actions must be {wanted}, got shape {actions.shape}, dtype {actions.dtype}")
        if actions.min() < 0 or (actions >= np.array(self.choices)).any():
            raise ValueError(f"actions must be in 0 .. {max(self.choices) - 1}, got {actions.tolist()}")

    def to_env(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Actions [N, *flat_shape] in the numbering and shape of the environment, [N, *shape]."""
        if self.kind == "discrete":
            return actions + self.starts[0]
        return (actions + np.array(self.starts, actions.dtype)).reshape(len(actions), *self.shape)


def blockwise(function: Callable[..., Tensor], sizes: Sizes, *xs: Tensor) -> Tensor:
    """Apply `function`, [..., n_d] to [..., n_d], to the block of each choice, and concatenate the results."""
    if sizes is None or len(sizes) == 1:
        return function(*xs)
    if len(set(sizes)) == 1:
        return function(*(x.unflatten(-1, (len(sizes), sizes[0])) for x in xs)).flatten(-2)
    return torch.cat([function(*parts) for parts in zip(*(x.split(sizes, -1) for x in xs), strict=True)], -1)


def reduce_blocks(function: Callable[[Tensor], Tensor], sizes: tuple[int, ...], x: Tensor) -> Tensor:
    """Apply `function`, [..., n_d] to [...], to the block of each choice; stack the results to [..., D]."""
    if len(set(sizes)) == 1:
        return function(x.unflatten(-1, (len(sizes), sizes[0])))
    return torch.stack([function(part) for part in x.split(sizes, -1)], -1)


def pick(x: Tensor, actions: Tensor, sizes: Sizes) -> Tensor:
    """Σ_d x_d(a_d): the entries of `x` [..., width] at `actions` [...] or [..., D]; returns [...], differentiable."""
    if sizes is None:
        return x.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
    firsts = _constant((0, *np.cumsum(sizes)[:-1].tolist()), x.device)
    return x.gather(-1, actions.long() + firsts).sum(-1)


def argmax(x: Tensor, sizes: Sizes) -> Tensor:
    """The best option of every choice: [...] or [..., D]."""
    if sizes is None:
        return x.argmax(-1)
    return reduce_blocks(lambda block: block.argmax(-1), sizes, x)


def uniform(shape: torch.Size, width: int, sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, float]:
    """(uniformly random actions for a batch of `shape`, number of different actions)."""
    if sizes is None:
        return torch.randint(width, shape, generator=generator, device=generator.device), float(width)
    options = _constant(sizes, generator.device)
    drawn = torch.rand(*shape, len(sizes), generator=generator, device=generator.device) * options
    return drawn.long().clamp(max=options - 1), float(math.prod(sizes))


@cache
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    # Cached: a CUDA graph must not contain a copy from the host.
    return torch.tensor(numbers, device=device)
