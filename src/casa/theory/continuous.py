"""CASA for continuous actions: a kernel over basis actions (appendix C), with integrals by quadrature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casa.theory.check import Check, Statement, identity
from casa.theory.mdp import seeded
from casa.theory.network import SmallNet, chi, jacobian, observations, relative_error


class Quadrature(NamedTuple):
    """Nodes and weights [J]: ∫ f(a) da over [-1, 1] is Σ_j w_j f(a_j)."""

    nodes: Tensor
    weights: Tensor


def gauss_legendre(count: int) -> Quadrature:
    """Exact for polynomials of degree 2 J - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return Quadrature(torch.from_numpy(nodes), torch.from_numpy(weights))


def simpson(intervals: int) -> Quadrature:
    """Composite Simpson on an even number of intervals."""
    nodes = torch.linspace(-1, 1, intervals + 1, dtype=torch.float64)
    weights = torch.full_like(nodes, 2.0)
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    return Quadrature(nodes, weights * (2.0 / intervals / 3.0))


def kernel_advantage(basis: Tensor, actions: Tensor, width: float = 0.4) -> Tensor:
    """A(s, a) = Σ_i K(a_i, a) A(s, a_i) / Σ_i K(a_i, a), K(x, y) = exp(-(x - y)² / 2 w²): [N, I] -> [N, J].

    The basis actions are evenly spaced on [-1, 1].
    """
    centres = torch.linspace(-1, 1, basis.shape[-1], dtype=basis.dtype)
    kernel = torch.exp(-(actions.unsqueeze(-1) - centres).square() / (2 * width**2))
    return basis @ (kernel / kernel.sum(-1, keepdim=True)).mT


def log_density(basis: Tensor, actions: Tensor, tau: float, rule: Quadrature) -> Tensor:
    """log π(a|s) = A(s, a)/τ - log ∫ exp(A(s, b)/τ) db at `actions` [J]: [N, J]."""
    exponents = kernel_advantage(basis, rule.nodes) / tau + rule.weights.log()
    return kernel_advantage(basis, actions) / tau - exponents.logsumexp(-1, keepdim=True)


def action_value(basis: Tensor, value: Tensor, actions: Tensor, tau: float, rule: Quadrature) -> Tensor:
    """Q(s, a) = A(s, a) - ∫ sg(π(b|s)) A(s, b) db + sg(V(s)) at `actions` [J]: [N, J]."""
    mass = rule.weights * log_density(basis, rule.nodes, tau, rule).exp().detach()
    mean = (mass * kernel_advantage(basis, rule.nodes)).sum(-1, keepdim=True)
    return kernel_advantage(basis, actions) - mean + value.detach().unsqueeze(-1)


def continuous_checks(seeds: Sequence[int]) -> list[Check]:
    """∇Q = τ ∇log π with a kernel over basis actions; the two integrals by different quadratures.

    With one rule for both, the identity would hold exactly even if the integrals were wrong.
    """
    errors: dict[float, list[float]] = {1.0: [], 0.3: []}
    angles = []
    for seed in seeds:
        generator = seeded(seed, purpose=7)
        net = SmallNet(generator, num_actions=5)
        parameters = list(net.parameters())
        outputs = net(observations(generator))
        basis, value = outputs["advantage"], outputs["value"]
        actions = 2 * torch.rand(12, generator=generator, dtype=torch.float64) - 1
        for tau, found in errors.items():
            log_pi = log_density(basis, actions, tau, gauss_legendre(64))
            q = action_value(basis, value, actions, tau, simpson(2000))
            grad_q, grad_log_pi = jacobian(q, parameters), jacobian(log_pi, parameters)
            found.append(relative_error(grad_q, tau * grad_log_pi))
            evenly = torch.full_like(log_pi, 1.0 / len(actions))
            angles.append(1 - chi(grad_q, grad_log_pi, evenly))
    measure = "largest relative error at 12 actions; Gauss-Legendre (64) for log π, Simpson (2000) for Q"
    return [
        identity(
            Statement(
                "continuous-gradient",
                "With continuous actions and a kernel over basis actions, the gradients are equal (τ = 1)",
                "∇Q(s, a) = ∇log π(s, a)",
                "appendix C",
            ),
            measure,
            errors[1.0],
            note=f"At τ = 0.3, ∇Q = τ ∇log π to {max(errors[0.3]):.0e}.",
            details={"relative_error_by_tau": {str(tau): found for tau, found in errors.items()}},
        ),
        identity(
            Statement("continuous-chi", "There, too, χ = 1", "χ = E[cos<∇Q, ∇log π>] = 1", "appendix C"),
            "largest 1 - χ",
            angles,
            note="The appendix calls the integrals closed-form; for this kernel they are not, and need quadrature.",
        ),
    ]
