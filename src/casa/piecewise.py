"""Densities on [-1, 1] whose logarithm is piecewise linear: every integral that CASA needs, in closed form.

A function of an action u in [-1, 1] is given by its values y_0 … y_{n-1} at n evenly spaced knots, and is linear in
between: y(u) = Σ_j φ_j(u) y_j, with the hat functions φ_j. If x is such a function, π(u) = exp(x(u)) / Z is a density,
log π is again such a function, and its expectations are sums over the knots:

    E_π[y] = Σ_j w_j y_j,   w_j = E_π[φ_j] = ∂ log Z / ∂x_j,   Σ_j w_j = 1.

So w takes the place that the probabilities have for discrete actions. All functions take any leading shape. They are
exact to rounding for equal neighbours and for differences of any size, in float32 and float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def hats(actions: Tensor, knots: int) -> Tensor:
    """φ_j(u) = max(0, 1 - |u - u_j| / h) at actions [...], limited to [-1, 1]; returns [..., knots], summing to 1."""
    position = (actions.clamp(-1, 1) + 1) * ((knots - 1) / 2)
    return (1 - (position.unsqueeze(-1) - _count(knots, position.dtype, position.device)).abs()).clamp(min=0)


@cache
def _count(knots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Cached: a CUDA graph must not contain a copy from the host.
    return torch.arange(knots, dtype=dtype, device=device)


def interpolate(y: Tensor, actions: Tensor) -> Tensor:
    """y(u) = Σ_j φ_j(u) y_j at actions [...], for y [..., knots]."""
    return (hats(actions, y.shape[-1]).to(y.dtype) * y).sum(-1)


def normalize(x: Tensor) -> tuple[Tensor, Tensor]:
    """(log π = x - log ∫ exp(x(u)) du at the knots, w_j = E_π[φ_j]), both [..., knots] and differentiable."""
    log_pi, *constants = _Normalize.apply(x)  # type: ignore[no-untyped-call]
    return log_pi, _Weights.apply(x, *constants)  # type: ignore[no-untyped-call]


def quantile(log_pi: Tensor, uniform: Tensor) -> Tensor:
    """The action u [...] with P(below u) = `uniform` [...] in [0, 1): a sample of π for a uniformly random number.

    The segment of u is found by the cumulated masses. Inside it π ∝ exp(d t) for t in [0, 1], whose inverse
    distribution function is t = log(1 + v (e^d - 1)) / d.
    """
    mass, rises = _segments(log_pi)
    mass = torch.softmax(mass, -1)
    ends = mass.cumsum(-1)
    target = (uniform * ends[..., -1]).unsqueeze(-1)  # rounding may leave the last end at 1 ± ε
    segment = (target >= ends[..., :-1]).sum(-1, keepdim=True)
    inside, rise = mass.gather(-1, segment), rises.gather(-1, segment)
    v = ((target - ends.gather(-1, segment) + inside) / inside).clamp(0, 1)
    # With d > 0 measured from the right end, the exponent is always falling and cannot overflow.
    v = torch.where(rise > 0, 1 - v, v)
    size = rise.abs().clamp(min=_TINY)
    t = (-torch.log1p(v * torch.expm1(-size)) / size).clamp(0, 1)
    t = torch.where(rise > 0, 1 - t, t)
    return ((segment + t) * (2 / (log_pi.shape[-1] - 1)) - 1).squeeze(-1).clamp(-1, 1)


def argmax(y: Tensor) -> Tensor:
    """The action u [...] with the largest y(u): always a knot."""
    return y.argmax(-1).to(y.dtype) * (2 / (y.shape[-1] - 1)) - 1


def mean(w: Tensor) -> Tensor:
    """E_π[u] = Σ_j w_j u_j [...], from the weights w [..., knots] of `normalize`."""
    knots = w.shape[-1]
    return (w * _count(knots, w.dtype, w.device)).sum(-1) * (2 / (knots - 1)) - 1


def variance(y: Tensor) -> Tensor:
    """The variance of y(u) over uniformly random u, [...]."""
    left, right = y[..., :-1], y[..., 1:]
    mean = (left + right).mean(-1) / 2
    left, right = left - mean.unsqueeze(-1), right - mean.unsqueeze(-1)
    return (left * left + left * right + right * right).mean(-1) / 3


def smoothing(basis: int, knots: int, width: float) -> Tensor:
    """K(u_j, b_i) / Σ_i K(u_j, b_i), K(u, b) = exp(-(u - b)² / 2 width²), [knots, basis] (appendix C).

    Basis actions b and knots u are evenly spaced on [-1, 1]. The matrix turns values at the basis actions into values
    of the paper's kernel at the knots; between them the kernel is interpolated.
    """
    u, b = (torch.linspace(-1, 1, count, dtype=torch.float64) for count in (knots, basis))
    return torch.softmax(-(u[:, None] - b).square() / (2 * width**2), -1).float()


def polynomials(terms: int, knots: int, unit: float = 1.0) -> Tensor:
    """2 unit/(k(k + 1)) P_k(u_j) with Legendre's polynomials P_1 … P_terms, [knots, terms].

    The matrix turns coefficients into values at the knots. Higher terms are the smaller ones, as k(k + 1) measures how
    much P_k bends. A constant is missing: it changes no policy.
    """
    with torch.device("cpu"):  # on the device "meta", arithmetic loads a compiler
        u = torch.linspace(-1, 1, knots, dtype=torch.float64)
        rows = [torch.ones_like(u), u]
        for k in range(1, terms):
            rows.append(((2 * k + 1) * u * rows[k] - k * rows[k - 1]) / (k + 1))
        return torch.stack([2 * unit / (k * (k + 1)) * rows[k] for k in range(1, terms + 1)], -1).float()


class _Normalize(torch.autograd.Function):
    """log π, with ∂log Z/∂x = w by hand; w and the segments' numbers are constants for `_Weights`.

    Two functions, since a compiler also computes a derivative that nobody asks for, and that of w is seldom needed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        x = x - x.amax(-1, keepdim=True)
        mass, place, rise = _masses(x)
        total = mass.sum(-1, keepdim=True)
        mass = mass / total
        w = _to_knots(mass * (1 - place), mass * place)
        ctx.save_for_backward(w)
        ctx.mark_non_differentiable(w, mass, place, rise)
        return x - (total * (2 / (x.shape[-1] - 1))).log(), w, mass, place, rise

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_pi: Tensor, *_: Tensor) -> Tensor:
        (w,) = ctx.saved_tensors
        return of_log_pi - w * of_log_pi.sum(-1, keepdim=True)


class _Weights(torch.autograd.Function):
    """w as a function of x: its derivative is ∂²log Z/∂x²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, mass: Tensor, place: Tensor, rise: Tensor) -> Tensor:
        ctx.save_for_backward(mass, place, rise)
        return w.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_w: Tensor) -> tuple[Tensor, None, None, None, None]:
        mass, place, rise = ctx.saved_tensors
        step = of_w[..., 1:] - of_w[..., :-1]
        mean = of_w[..., :-1] + place * step  # of the slope in each segment
        centred = mass * (mean - (mass * mean).sum(-1, keepdim=True))
        moved = mass * step * _place_slope(rise)
        return _to_knots(centred * (1 - place) - moved, centred * place + moved), None, None, None, None


def _segments(x: Tensor) -> tuple[Tensor, Tensor]:
    """(log ∫₀¹ exp(x_k + d_k t) dt, d_k = x_{k+1} - x_k) of the n - 1 segments [..., n - 1].

    ∫₀¹ exp(x_k + d t) dt = exp(max(x_k, x_{k+1})) (1 - e^{-|d|}) / |d|.
    """
    left, right = x[..., :-1], x[..., 1:]
    rise = right - left
    size = rise.abs().clamp(min=_TINY)
    return torch.maximum(left, right) + torch.log(-torch.expm1(-size) / size), rise


def _masses(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(m_k = ∫₀¹ exp(x_k + d_k t) dt, the mean of t under exp(d_k t), d_k = x_{k+1} - x_k), [..., n - 1], for x ≤ 0.

    One exponential for each knot: with e_k = exp(x_k), m = (e_{k+1} - e_k)/d and coth(d/2) = (e_{k+1} + e_k)/(e_{k+1} -
    e_k); for small z = d/2, m = ½(e_k + e_{k+1}) tanh(z)/z. Where both are 0, so is m, and the mean is any number.
    """
    rise, height = x[..., 1:] - x[..., :-1], x.exp()
    both, step = height[..., 1:] + height[..., :-1], height[..., 1:] - height[..., :-1]
    z = rise / 2
    small, large, s = _small(z)
    mass = torch.where(small, 0.5 * both * _series(s, _TANH), 0.5 * step.abs() / large)
    coth = both / step.abs().clamp(min=torch.finfo(x.dtype).tiny)
    langevin = torch.where(small, z * _series(s, _LANGEVIN), torch.sign(z) * (coth - 1 / large))
    return mass, (1 + langevin) / 2, rise


def _to_knots(left: Tensor, right: Tensor) -> Tensor:
    """Sums over the segments' left and right ends, [..., n - 1] each, to [..., n]."""
    return F.pad(left, (0, 1)) + F.pad(right, (1, 0))


def _place_slope(rise: Tensor) -> Tensor:
    """The derivative by d of the mean of t in `_masses`: (1/z² - 1/sinh² z) / 4 with z = d/2."""
    small, large, s = _small(rise / 2)
    return torch.where(small, _series(s, _LANGEVIN_SLOPE), large**-2 - torch.sinh(large) ** -2) / 4


# Coefficients of z², z⁴, ... in tanh(z) / z, in (coth z - 1/z) / z and in 1/z² - 1/sinh² z.
_TANH = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075, -929569 / 638512875)
_LANGEVIN = (1 / 3, -1 / 45, 2 / 945, -1 / 4725, 2 / 93555)
_LANGEVIN_SLOPE = (1 / 3, -1 / 15, 2 / 189, -1 / 675, 2 / 10395)
_TINY = 1e-30


def _small(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(whether |z| is so small that a series is the more exact, |z| limited from below, z² limited from above)."""
    limit = 0.5 if z.dtype == torch.float32 else 0.1
    size = z.abs()
    return size < limit, size.clamp(min=limit), size.clamp(max=limit).square()


def _series(s: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = s * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total = (total + coefficient) * s
    return total + coefficients[0]
