"""The CASA head of any density: A = τ log π + c(s), for a Gaussian, a truncated one and a mixture, by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from casa.heads import casa_gaussian_head
from casa.theory.check import Check, Statement, identity
from casa.theory.continuous import Quadrature, gauss_legendre, simpson
from casa.theory.mdp import seeded
from casa.theory.network import SmallNet, jacobian, observations, relative_error

DIMENSIONS = 3
TAUS = (1.0, 0.03)
REACH = 14.0
"""Integrals over the line are cut off here: at least eight standard deviations from every mean."""


class Parameters(NamedTuple):
    """Of two Gaussians in every dimension, [N, D, 2]; the densities of one Gaussian use the first."""

    mean: Tensor
    log_std: Tensor
    logits: Tensor


class Density(NamedTuple):
    """`log_pi(parameters, a)`: log π_d(a) [N, D, J] from a [N, D, J]; `rule`: ∫ over all actions."""

    log_pi: Callable[[Parameters, Tensor], Tensor]
    rule: Quadrature


def log_normal(mean: Tensor, log_std: Tensor, x: Tensor) -> Tensor:
    """log N(x; mean, std²)."""
    return -0.5 * ((x - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)


def gaussian(p: Parameters, x: Tensor) -> Tensor:
    """log N(x; mean, std²) of the first Gaussian."""
    return log_normal(p.mean[..., :1], p.log_std[..., :1], x)


def truncated(p: Parameters, x: Tensor) -> Tensor:
    """log N(x; mean, std²) - log (Φ((1 - mean)/std) - Φ((-1 - mean)/std)): the first Gaussian, cut off at -1 and 1."""
    low, high = (torch.special.ndtr((bound - p.mean[..., :1]) / p.log_std[..., :1].exp()) for bound in (-1, 1))
    return gaussian(p, x) - (high - low).log()


def mixture(p: Parameters, x: Tensor) -> Tensor:
    """log Σ_k w_k N(x; mean_k, std_k²) with w = softmax(logits)."""
    each = log_normal(p.mean.unsqueeze(-2), p.log_std.unsqueeze(-2), x.unsqueeze(-1))
    return (p.logits.log_softmax(-1).unsqueeze(-2) + each).logsumexp(-1)


_LINE = Quadrature(*(REACH * x for x in simpson(4000)))
DENSITIES = {
    "Gaussian": Density(gaussian, _LINE),
    "truncated": Density(truncated, gauss_legendre(64)),
    "mixture": Density(mixture, _LINE),
}


def literal_q(density: Density, p: Parameters, offset: Tensor, value: Tensor, actions: Tensor, tau: float) -> Tensor:
    """Q(s, a) = A - ∫ sg(π) A + sg(V) with A = Σ_d (τ log π_d(a_d) + c(s)) at `actions` [N, D]: [N]."""

    def advantage(points: Tensor) -> Tensor:
        return tau * density.log_pi(p, points) + offset[:, None, None]

    nodes = density.rule.nodes.expand(*actions.shape, -1)
    mass = density.rule.weights * density.log_pi(p, nodes).exp().detach()
    mean = (mass * advantage(nodes)).sum(-1)
    return (advantage(actions.unsqueeze(-1)).squeeze(-1) - mean).sum(-1) + value.detach()


def density_checks(seeds: Sequence[int]) -> list[Check]:
    """∇Q = τ ∇log π for densities that are given by their own formula, and the library's Gaussian head."""
    gradients: dict[str, list[float]] = {name: [] for name in DENSITIES}
    heads = []
    for seed in seeds:
        generator = seeded(seed, purpose=9)
        net = SmallNet(generator, num_actions=2 * DIMENSIONS)
        weights = list(net.parameters())
        out = net(observations(generator))
        value, offset = out["value"], out["logits"].sum(-1)
        mean, log_std, logits = (out[name].unflatten(-1, (DIMENSIONS, 2)) for name in ("advantage", "q", "logits"))
        p = Parameters(mean, 0.5 * log_std.tanh(), logits)
        actions = 2 * torch.rand(len(value), DIMENSIONS, generator=generator, dtype=torch.float64) - 1
        for tau in TAUS:
            for name, density in DENSITIES.items():
                q = literal_q(density, p, offset, value, actions, tau)
                log_pi = density.log_pi(p, actions.unsqueeze(-1)).sum((-1, -2))
                gradients[name].append(relative_error(jacobian(q, weights), tau * jacobian(log_pi, weights)))
            head = casa_gaussian_head(p.mean[..., 0], p.log_std[..., 0], value, tau)
            literal = literal_q(DENSITIES["Gaussian"], p, offset, value, actions, tau)
            heads.append(relative_error(head.q_of(actions).detach(), literal.detach()))
            heads.append(relative_error(jacobian(head.q_of(actions), weights), jacobian(literal, weights)))
    where = f"{DIMENSIONS} dimensions, τ = {', '.join(map(str, TAUS))}"
    return [
        identity(
            Statement(
                "density-gradient",
                "The head of any density whose score has the mean 0, with A = τ log π + c(s), has CASA's gradient",
                "E_π[∇log π] = 0 => Q = A - sg(E_π)[A] + sg(V) = V + τ (log π + H), ∇Q = τ ∇log π",
                "eq. 6 and 10, for densities",
            ),
            f"largest relative error for a Gaussian, one truncated at -1 and 1, and a mixture of two; {where}",
            [error for found in gradients.values() for error in found],
            details={"relative_error_by_density": gradients},
        ),
        identity(
            Statement(
                "gaussian-head",
                "For a Gaussian this head is in closed form",
                "Q = V + τ Σ_d ½ (1 - ((a_d - mean_d) / std_d)²)",
                "extra (appendix C)",
            ),
            f"largest relative error of Q and ∇Q against Simpson's rule; {where}",
            heads,
        ),
    ]
