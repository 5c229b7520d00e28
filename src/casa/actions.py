"""Action spaces of discrete choices and continuous parts, and the layout of values over them.

A policy over several parts is factored: A(s, a) = Σ_d A_d(s, a_d) gives π = ∏_d π_d, with π_d = softmax(A_d/τ) for a
discrete choice, and for a continuous part the density π_d ∝ exp(A_d/τ) (`casa.piecewise`). The outputs of all parts
are concatenated in one axis [..., n_1 + ... + n_D], with `sizes` = (n_1, ..., n_D): the number of options of a choice,
or `Knots(n)` of a continuous part. If `sizes` is None there is one choice, and an action is a single integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from casa import piecewise


@dataclass(frozen=True)
class Knots:
    """The size of a continuous part: its functions of u in [-1, 1] are given by their values at `count` knots.

    `smooth`: they are samples of a smooth function of u, so that neighbouring actions are alike.
    """

    count: int
    smooth: bool = False


Part = int | Knots
Sizes = tuple[Part, ...] | None
ActionKind = Literal["discrete", "multi-discrete", "multi-binary", "box", "dict", "tuple"]
CONTINUOUS = 0
"""In `ActionSpec.choices`: a continuous part."""


@dataclass(frozen=True)
class ActionSpec:
    """An action space of D parts; part d has `choices[d]` options, which the environment numbers from `starts[d]`.

    `choices[d]` is 0 for a continuous part, which the environment counts from `low[d]` to `high[d]`. `shape` is the
    shape of one action in the environment, () for a single integer. Inside CASA options are numbered from 0 and
    continuous parts go from -1 to 1; an action is one integer (discrete) or a flat vector of D numbers. A dict or tuple
    has the parts of its entries `parts`, in order.
    """

    kind: ActionKind
    choices: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    parts: tuple[ActionSpec, ...] = ()

    @classmethod
    def discrete(cls, count: int, start: int = 0) -> ActionSpec:
        """One choice of `count` options."""
        return cls("discrete", (count,), (start,))

    @classmethod
    def box(cls, low: npt.ArrayLike, high: npt.ArrayLike) -> ActionSpec:
        """Continuous actions between the arrays `low` and `high`."""
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        none = (CONTINUOUS,) * low.size
        return cls("box", none, none, low.shape, tuple(low.ravel().tolist()), tuple(high.ravel().tolist()))

    @classmethod
    def group(cls, kind: Literal["dict", "tuple"], names: tuple[str, ...], parts: tuple[ActionSpec, ...]) -> ActionSpec:
        """The actions of several spaces together; a tuple has no `names`."""
        choices, starts = (tuple(x for part in parts for x in getattr(part, name)) for name in ("choices", "starts"))
        return cls(kind, choices, starts, names=names, parts=parts)

    @classmethod
    def load(cls, saved: dict[str, Any]) -> ActionSpec:
        """From the dictionary of `dataclasses.asdict`, after a round trip through JSON."""
        choices, starts, shape = (tuple(int(x) for x in saved[name]) for name in ("choices", "starts", "shape"))
        low, high = (tuple(float(x) for x in saved.get(name, ())) for name in ("low", "high"))
        parts = tuple(cls.load(part) for part in saved.get("parts", ()))
        return cls(saved["kind"], choices, starts, shape, low, high, tuple(saved.get("names", ())), parts)

    def sizes(self, knots: int = 0, smooth: bool = False) -> Sizes:
        """(n_1, ..., n_D), the layout of the outputs with `knots` per continuous part; None for a single integer."""
        if self.kind == "discrete":
            return None
        return tuple(Knots(knots, smooth) if count == CONTINUOUS else count for count in self.choices)

    def width(self, knots: int = 0) -> int:
        """Number of network outputs for one function of the action, such as Q: n_1 + ... + n_D."""
        return sum(count or knots for count in self.choices)

    @property
    def continuous(self) -> bool:
        """Whether there are continuous parts."""
        return CONTINUOUS in self.choices

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """Shape of one action inside CASA: () or (D,)."""
        return () if self.kind == "discrete" else (len(self.choices),)

    @property
    def dtype(self) -> torch.dtype:
        """float32 with continuous parts, else the smallest integer type that holds every option."""
        if self.continuous:
            return torch.float32
        return torch.int16 if max(self.choices) <= 2**15 else torch.int32

    @property
    def acting_dtype(self) -> torch.dtype:
        """The type in which actions are chosen and sent: float32 with continuous parts, else int64."""
        return torch.float32 if self.continuous else torch.int64

    def __str__(self) -> str:
        if self.kind == "discrete":
            return f"{self.choices[0]} actions"
        if self.kind == "multi-binary":
            return f"{len(self.choices)} binary actions"
        if self.kind == "box":
            return f"{len(self.choices)} continuous action" + "s" * (len(self.choices) > 1)
        if self.parts:
            return " + ".join(map(str, self.parts))
        shown = " x ".join(map(str, self.choices[:6])) + (" x ..." if len(self.choices) > 6 else "")
        return f"{shown} actions"

    def random(self, rng: np.random.Generator, count: int) -> npt.NDArray[Any]:
        """Uniform actions [count, *flat_shape]."""
        if self.kind == "discrete":
            return rng.integers(0, self.choices[0], count)
        if not self.continuous:
            return rng.integers(0, self.choices, (count, len(self.choices)))
        uniform = rng.random((count, len(self.choices)), np.float32)
        choices = np.array(self.choices)
        return np.where(choices == CONTINUOUS, 2 * uniform - 1, np.floor(uniform * choices)).astype(np.float32)

    def check(self, actions: npt.NDArray[Any], count: int) -> None:
        """ValueError unless `actions` are numbers [count, *flat_shape], each from 0 to its number of options - 1.

        Continuous parts may be any finite number: `to_env` limits them.
        """
        kinds, what = ("f", "numbers") if self.continuous else ("iu", "integers")
        if actions.shape != (count, *self.flat_shape) or actions.dtype.kind not in kinds:
            wanted = f"{count} {what}" if self.kind == "discrete" else f"{count} x {len(self.choices)} {what}"
            raise ValueError(f"actions must be {wanted}, got shape {actions.shape}, dtype {actions.dtype}")
        if not self.continuous:
            if actions.min() < 0 or (actions >= np.array(self.choices)).any():
                raise ValueError(f"actions must be in 0 .. {max(self.choices) - 1}, got {actions.tolist()}")
        elif not np.isfinite(actions).all():
            raise ValueError(f"actions must be finite, got {actions.tolist()}")

    def to_env(self, actions: npt.NDArray[Any]) -> Any:
        """Actions [N, *flat_shape] in the units, numbering and shape of the environment, [N, *shape]."""
        if self.kind == "discrete":
            return actions + self.starts[0]
        if self.parts:
            columns = (actions[:, a:b] for a, b in pairwise(np.cumsum([0, *(len(p.choices) for p in self.parts)])))
            entries = [part._of_group(x) for part, x in zip(self.parts, columns, strict=True)]
            return dict(zip(self.names, entries, strict=True)) if self.kind == "dict" else tuple(entries)
        if self.kind == "box":
            low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
            scaled = low + (actions + 1) * ((high - low) / 2)
            return scaled.clip(low, high).astype(np.float32).reshape(len(actions), *self.shape)
        return (actions + np.array(self.starts, actions.dtype)).reshape(len(actions), *self.shape)

    def _of_group(self, columns: npt.NDArray[Any]) -> Any:
        columns = columns if self.continuous else columns.astype(np.int64)
        return self.to_env(columns[:, 0] if self.kind == "discrete" else columns)

    def from_env(self, action: Any) -> npt.NDArray[Any]:
        """One action of the environment as CASA has it, [*flat_shape]: the inverse of `to_env`."""
        if self.parts:
            entries = [action[name] for name in self.names] if self.kind == "dict" else action
            found = [np.reshape(part.from_env(x), -1) for part, x in zip(self.parts, entries, strict=True)]
            return np.concatenate(found).astype(np.float32 if self.continuous else np.int64)
        if self.kind == "box":
            low, span = np.array(self.low), np.array(self.high) - np.array(self.low)
            return (2 * (np.reshape(action, -1) - low) / np.where(span > 0, span, 1) - 1).astype(np.float32)
        starts = np.array(self.starts[0] if self.kind == "discrete" else self.starts)
        return (np.asarray(action).reshape(self.flat_shape) - starts).astype(np.int64)


def blocks(sizes: Sizes, *xs: Tensor) -> Iterator[tuple[Any, ...]]:
    """(part, its block of every x [..., n_d]); parts of equal size come together, as one block [..., D, n]."""
    if sizes is None or len(sizes) == 1:
        yield (xs[0].shape[-1] if sizes is None else sizes[0]), *xs
    elif alike(sizes):
        yield sizes[0], *(x.unflatten(-1, (len(sizes), -1)) for x in xs)
    else:
        yield from zip(sizes, *(x.split(_widths(sizes), -1) for x in xs), strict=True)


def joined(results: Sequence[Tensor], sizes: Sizes) -> Tensor:
    """The results of `blocks` [..., n_d] in one axis."""
    if sizes is None or len(sizes) == 1:
        return results[0]
    return results[0].flatten(-2) if alike(sizes) else torch.cat(list(results), -1)


def blockwise(function: Callable[..., Tensor], sizes: Sizes, *xs: Tensor) -> Tensor:
    """Apply `function`, (part, [..., n_d]) to [..., n_d], to the block of each part, and concatenate the results."""
    if sizes is None:
        return function(xs[0].shape[-1], *xs)
    return joined([function(*block) for block in blocks(sizes, *xs)], sizes)


def reduce_blocks(function: Callable[..., Tensor], sizes: tuple[Part, ...], *xs: Tensor) -> Tensor:
    """Apply `function`, (part, [..., n_d]) to [...], to the block of each part; stack the results to [..., D]."""
    results = [function(*block) for block in blocks(sizes, *xs)]
    return results[0] if len(sizes) > 1 and alike(sizes) else torch.stack(results, -1)


@cache
def is_continuous(sizes: Sizes) -> bool:
    """Whether there are continuous parts."""
    return sizes is not None and any(isinstance(part, Knots) for part in sizes)


@cache
def alike(sizes: Sizes) -> bool:
    """Whether all parts of an action have the same size; not for a single integer."""
    return sizes is not None and len(set(sizes)) == 1


def pick(x: Tensor, actions: Tensor, sizes: Sizes) -> Tensor:
    """Σ_d x_d(a_d): `x` [..., width] at `actions` [...] or [..., D]; returns [...], differentiable."""
    if sizes is None:
        return x.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
    if not is_continuous(sizes):
        firsts = _constant((0, *np.cumsum(_widths(sizes))[:-1].tolist()), x.device)
        return x.gather(-1, actions.long() + firsts).sum(-1)
    if alike(sizes):
        return piecewise.interpolate(x.unflatten(-1, (len(sizes), -1)), actions).sum(-1)
    columns = zip(sizes, x.split(_widths(sizes), -1), actions.unbind(-1), strict=True)
    return torch.stack([_at(part, block, action) for part, block, action in columns]).sum(0)


def _at(part: Part, block: Tensor, action: Tensor) -> Tensor:
    return piecewise.interpolate(block, action) if isinstance(part, Knots) else pick(block, action, None)


def argmax(x: Tensor, sizes: Sizes) -> Tensor:
    """The best option of every choice, and the best value of every continuous part: [...] or [..., D]."""
    if sizes is None:
        return x.argmax(-1)
    if not is_continuous(sizes):
        return reduce_blocks(lambda _, block: block.argmax(-1), sizes, x)
    return reduce_blocks(_best, sizes, x)


def _best(part: Part, block: Tensor) -> Tensor:
    return piecewise.argmax(block) if isinstance(part, Knots) else block.argmax(-1).float()


def without_chance(log_pi: Tensor, pi: Tensor | None, sizes: Sizes) -> Tensor:
    """The most likely option of every choice, the most likely knot of a continuous part, or its mean if it is smooth.

    The mean varies smoothly with the state, as the policy does; the likeliest of a grid of actions jumps.
    """
    if sizes is None or pi is None:
        return argmax(log_pi, sizes)

    def chosen(part: Part, block: Tensor, weights: Tensor) -> Tensor:
        return piecewise.mean(weights) if isinstance(part, Knots) and part.smooth else _best(part, block)

    return reduce_blocks(chosen, sizes, log_pi, pi)


def noise(log_pi: Tensor, sizes: Sizes, generator: torch.Generator) -> list[Tensor]:
    """The random numbers of one sample of π: e_a ~ Exp(1) for choices, uniform in [0, 1) for continuous parts."""
    if sizes is None or not is_continuous(sizes):
        return [torch.empty_like(log_pi).exponential_(generator=generator)]

    def draw(part: Part, block: Tensor) -> Tensor:
        if isinstance(part, Knots):
            return torch.rand(block.shape[:-1], dtype=block.dtype, device=block.device, generator=generator)
        return torch.empty_like(block).exponential_(generator=generator)

    return [draw(part, block) for part, block in blocks(sizes, log_pi)]


def sample_from(log_pi: Tensor, sizes: Sizes, drawn: Sequence[Tensor]) -> Tensor:
    """a ~ π for numbers `drawn` by `noise`: argmax_a π(a)/e_a, and the inverse distribution of continuous parts."""
    if sizes is None or not is_continuous(sizes):
        return argmax(log_pi - drawn[0].log(), sizes)
    left = iter(drawn)

    def choose(part: Part, block: Tensor) -> Tensor:
        if isinstance(part, Knots):
            return piecewise.quantile(block, next(left))
        return (block - next(left).log()).argmax(-1).float()

    return reduce_blocks(choose, sizes, log_pi)


def near_best(
    x: Tensor, sizes: tuple[Part, ...], epsilons: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """ε-greedy on `x` [..., width] in every part of an action by itself: (actions [..., D], log μ(a) [...]).

    With probability ε [...] a part is uniformly random. Otherwise it is the best option, or a uniformly random u within
    half a knot spacing of the best knot, so that continuous parts have a density:
    μ_d(u) = ε/2 + (1 - ε) [|u - best| ≤ h/2] / (length of that interval in [-1, 1]).
    """
    best = argmax(x, sizes)
    lows, highs, options, half = _near(sizes, x.dtype, x.device)
    low, high = torch.maximum(best - half, lows), torch.minimum(best + half, highs)
    drawn, explore = torch.rand(2, *best.shape, dtype=x.dtype, device=x.device, generator=generator)
    continuous = options == CONTINUOUS
    near = torch.where(continuous, low + (high - low) * drawn, best)
    anything = torch.where(continuous, 2 * drawn - 1, (drawn * options).floor())
    epsilon = epsilons.unsqueeze(-1)
    actions = torch.where(explore < epsilon, anything, near)
    is_near = (actions >= low) & (actions <= high)
    width = torch.where(continuous, high - low, 1.0)
    mu = epsilon / torch.where(continuous, 2.0, options) + (1 - epsilon) * is_near / width
    return actions, mu.log().sum(-1)


@cache
def _near(sizes: tuple[Part, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each part: its bounds, its number of options (0 if continuous), half its knot spacing (0 if discrete)."""
    rows = [(-1.0, 1.0, 0.0, 1 / (p.count - 1)) if isinstance(p, Knots) else (0.0, p - 1.0, p, 0.0) for p in sizes]
    lows, highs, options, half = torch.tensor(rows, dtype=dtype, device=device).unbind(-1)
    return lows, highs, options, half


def uniform(shape: torch.Size, width: int, sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, float]:
    """(uniformly random actions for a batch of `shape`, number of different actions), for discrete actions."""
    if sizes is None:
        return torch.randint(width, shape, generator=generator, device=generator.device), float(width)
    widths = _widths(sizes)
    options = _constant(widths, generator.device)
    drawn = torch.rand(*shape, len(sizes), generator=generator, device=generator.device) * options
    return drawn.long().clamp(max=options - 1), float(math.prod(widths))


@cache
def _widths(sizes: tuple[Part, ...]) -> tuple[int, ...]:
    return tuple(part.count if isinstance(part, Knots) else part for part in sizes)


@cache
def _constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    # Cached: a CUDA graph must not contain a copy from the host.
    return torch.tensor(numbers, device=device)
