"""CASA for continuous actions with a hat kernel, as the library has it: piecewise linear A, closed-form integrals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from casa.actions import Knots
from casa.heads import HeadOutput, casa_head
from casa.piecewise import hats
from casa.theory.check import Check, Statement, identity
from casa.theory.continuous import Quadrature, gauss_legendre
from casa.theory.mdp import seeded
from casa.theory.network import SmallNet, chi, jacobian, observations, relative_error

DIMENSIONS, KNOTS = 3, 6
TAUS = (1.0, 0.3, 0.03)
GREEDY_TAU = 1e-4


def by_segment(knots: int, count: int = 48) -> Quadrature:
    """Gauss-Legendre in each of the knots - 1 segments, where the integrands are smooth."""
    rule, edges = gauss_legendre(count), torch.linspace(-1, 1, knots, dtype=torch.float64)
    half = 1.0 / (knots - 1)
    nodes = (edges[:-1] + half).unsqueeze(-1) + half * rule.nodes
    return Quadrature(nodes.flatten(), (half * rule.weights).repeat(knots - 1))


def literal(advantage: Tensor, tau: float, rule: Quadrature) -> tuple[Tensor, Tensor]:
    """(log ∫ exp(A_d(u)/τ) du, E_π[A_d]) of every dimension [N, D], by quadrature, from A [N, D, n]."""
    at_nodes = advantage @ hats(rule.nodes, advantage.shape[-1]).mT
    exponents = at_nodes / tau + rule.weights.log()
    return exponents.logsumexp(-1), (exponents.softmax(-1) * at_nodes).sum(-1)


def hat_checks(seeds: Sequence[int]) -> list[Check]:
    """The integrals against quadrature; ∇Q = τ ∇log π, χ = 1, the entropy lemma and the greedy limit with them."""
    integrals, gradients, angles, entropies, losses = [], [], [], [], []
    rule = by_segment(KNOTS)
    sizes = (Knots(KNOTS),) * DIMENSIONS
    for seed in seeds:
        generator = seeded(seed, purpose=8)
        net = SmallNet(generator, num_actions=DIMENSIONS * KNOTS)
        parameters = list(net.parameters())
        outputs = net(observations(generator))
        advantage, value = outputs["advantage"], outputs["value"]
        blocks = advantage.unflatten(-1, (DIMENSIONS, KNOTS))
        actions = 2 * torch.rand(len(value), DIMENSIONS, generator=generator, dtype=torch.float64) - 1
        for tau in TAUS:
            out = casa_head(advantage, value, tau, sizes)
            log_z, mean = literal(blocks, tau, rule)
            phi = hats(actions, KNOTS)
            literal_log_pi = ((phi * blocks).sum(-1) / tau - log_z).sum(-1)
            literal_q = ((phi * blocks).sum(-1) - mean).sum(-1) + value
            integrals += [relative_error(out.log_prob(actions).detach(), literal_log_pi.detach())]
            integrals += [relative_error(out.q_of(actions).detach(), literal_q.detach())]
            grad_q, grad_log_pi = (jacobian(x, parameters) for x in (out.q_of(actions), literal_log_pi))
            gradients.append(relative_error(grad_q, tau * grad_log_pi))
            angles.append(1 - chi(grad_q.unsqueeze(1), grad_log_pi.unsqueeze(1), torch.ones(len(value), 1)))
            entropies.append(_entropy_error(out, blocks, tau, rule, parameters))
        greedy = casa_head(advantage, value, GREEDY_TAU, sizes)
        best = blocks.amax(-1).sum(-1).detach()
        centred = (greedy.q_of(actions) - value).detach()  # A(a) - E_π[A]
        expected = (hats(actions, KNOTS) * blocks.detach()).sum((-1, -2)) - centred
        losses.append(float(((best - expected) / (DIMENSIONS * GREEDY_TAU) - 1).abs().max()))
    where = f"{DIMENSIONS} dimensions, {KNOTS} knots, τ = {', '.join(map(str, TAUS))}"
    return [
        identity(
            Statement(
                "hat-integrals",
                "With a hat kernel, A linear between knots, the integrals of appendix C are closed-form",
                "log π = Σ_d A_d(a_d)/τ - log ∫ exp(A_d/τ), Q = Σ_d (A_d(a_d) - ∫ π_d A_d) + V",
                "appendix C, with another kernel",
            ),
            f"largest relative error of log π and Q against Gauss-Legendre; {where}",
            integrals,
        ),
        identity(
            Statement(
                "hat-gradient",
                "There the gradients are proportional, in any number of dimensions",
                "∇Q(s, a) = τ ∇log π(s, a)",
                "appendix C, eq. 10",
            ),
            "largest relative error; log π by quadrature, Q in closed form",
            gradients,
        ),
        identity(Statement("hat-chi", "And χ = 1", "χ = 1", "appendix C, sec. 3.3"), "largest 1 - χ", angles),
        identity(
            Statement(
                "hat-entropy",
                "The entropy lemma holds for densities",
                "E_π[(Q - V) ∇log π] = -τ ∇H[π]",
                "lemma E.2, continuous",
            ),
            "largest relative error; the expectation by quadrature, H in closed form",
            entropies,
        ),
        identity(
            Statement(
                "hat-greedy",
                "The greedy limit is only linear in τ: a density loses τ in every dimension, where discrete actions "
                "lose exponentially little",
                "max A - E_π[A] = D τ (1 + o(1))",
                "extra (appendix B, continuous)",
            ),
            f"largest relative error at τ = {GREEDY_TAU:g}",
            losses,
            tolerance=1e-6,
        ),
    ]


def _entropy_error(
    out: HeadOutput, blocks: Tensor, tau: float, rule: Quadrature, parameters: Sequence[Tensor]
) -> float:
    """Relative error of E_π[(Q - V) ∇log π] against -τ ∇H: a sum over dimensions, since these are independent."""
    phi = hats(rule.nodes, KNOTS)
    log_pi = out.log_pi.unflatten(-1, (DIMENSIONS, KNOTS)) @ phi.mT
    with torch.no_grad():
        mass = rule.weights * log_pi.exp()
        at_nodes = blocks @ phi.mT
        weights = mass * (at_nodes - (mass * at_nodes).sum(-1, keepdim=True))
    expected = jacobian((weights * log_pi).sum((-1, -2)), parameters)
    return relative_error(expected, -tau * jacobian(out.entropy(), parameters))
