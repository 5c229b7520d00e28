"""Theorem 2: compatible function approximation where Q and π share their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casa.heads import HEADS, HeadOutput
from casa.theory.check import Check, Statement, identity
from casa.theory.mdp import FiniteMDP, random_mdp, seeded

Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinearAgent:
    """A_θ(s, a) = φ(s, a)·θ and V_θ(s) = ψ(s)·θ on one parameter vector, through one of the library's heads.

    φ [S, A, k] and ψ [S, k]; with k < |S| |A| not every function can be represented.
    """

    mdp: FiniteMDP
    advantage_features: Tensor
    value_features: Tensor
    tau: float
    head_name: str = "casa"

    def head(self, theta: Tensor) -> HeadOutput:
        """(V, Q, log π) in every state."""
        outputs = {"advantage": self.advantage_features @ theta, "value": self.value_features @ theta}
        return HEADS[self.head_name](outputs, self.tau)

    def zeros(self) -> Tensor:
        """θ = 0: the uniform policy."""
        return torch.zeros(self.value_features.shape[-1], dtype=torch.float64)

    def evaluation(self, theta: Tensor) -> Tensor:
        """E_π[(Q^π - Q_θ) ∇Q_θ], over the discounted state distribution: [k]; theorem 2 requires that it is 0."""
        return self.ascent(theta, q_weight=1.0, policy_weight=0.0)

    def ascent(self, theta: Tensor, q_weight: float, policy_weight: float) -> Tensor:
        """α₂ E_π[(Q^π - Q_θ) ∇Q_θ] + α₃ E_π[τ (Q^π - V_θ) ∇log π], over d^π: [k]."""
        parameter = theta.detach().requires_grad_()
        head = self.head(parameter)
        assert head.q is not None
        policy = head.log_pi.exp().detach()
        weights = self.mdp.visits(policy).unsqueeze(-1) * policy
        truth = self.mdp.action_values(policy)
        q_errors = q_weight * weights * (truth - head.q.detach())
        advantages = policy_weight * self.tau * weights * (truth - head.v.detach().unsqueeze(-1))
        return _slope((q_errors * head.q + advantages * head.log_pi).sum(), parameter)

    def policy_gradient(self, theta: Tensor) -> Tensor:
        """∇J by differentiating the exact J = Σ p₀ V^π: [k]."""
        parameter = theta.detach().requires_grad_()
        return _slope(self.mdp.objective(self.head(parameter).log_pi.exp()), parameter)

    def compatible_gradient(self, theta: Tensor) -> Tensor:
        """E_π[Q_θ ∇log π], over d^π: [k]; equal to ∇J by theorem 2."""
        parameter = theta.detach().requires_grad_()
        head = self.head(parameter)
        assert head.q is not None
        policy = head.log_pi.exp().detach()
        weights = self.mdp.visits(policy).unsqueeze(-1) * policy * head.q.detach()
        return _slope((weights * head.log_pi).sum(), parameter)


def linear_agent(seed: int, tau: float, head_name: str = "casa", num_features: int = 5) -> LinearAgent:
    """Random features on a random MDP of 4 states and 3 actions."""
    generator = seeded(seed, purpose=3)
    mdp = random_mdp(generator, num_states=4, num_actions=3)
    advantage = torch.randn(4, 3, num_features, generator=generator, dtype=torch.float64)
    value = torch.randn(4, num_features, generator=generator, dtype=torch.float64)
    return LinearAgent(mdp, advantage, value, tau, head_name)


def tabular_agent(seed: int, tau: float) -> LinearAgent:
    """θ = (A(s, a) for all s, a; V(s) for all s): every function can be represented."""
    mdp = random_mdp(seeded(seed, purpose=4), num_states=4, num_actions=3)
    identity_matrix = torch.eye(16, dtype=torch.float64)
    return LinearAgent(mdp, identity_matrix[:12].view(4, 3, 16), identity_matrix[12:], tau)


def stationary_point(field: Field, start: Tensor, attempts: int = 3) -> Tensor | None:
    """θ with field(θ) = 0, by ascent steps and then damped Newton steps; None if no attempt converges.

    The first attempt starts at `start`, the others at fixed random points around it.
    """
    generator = seeded(0, purpose=5)
    for attempt in range(attempts):
        noise = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        found = _newton(field, start + (0.5 * noise if attempt else 0.0))
        if found is not None:
            return found
    return None


def _newton(field: Field, theta: Tensor, flow: int = 250, steps: int = 20) -> Tensor | None:
    for _ in range(flow):
        theta = theta + 0.02 * field(theta)
    value = field(theta)
    for _ in range(steps):
        # Written so that a NaN ends the search as well.
        if not 1e-13 < float(value.norm()) < 1e6:
            break
        # Pseudo-inverse: no step along directions that do not change the field (a constant shift of A).
        direction = torch.linalg.pinv(_derivative(field, theta), rtol=1e-9) @ -value
        factor = 1.0
        while factor > 1e-4 and not float(field(theta + factor * direction).norm()) < float(value.norm()):
            factor /= 2
        if factor <= 1e-4:
            break
        theta = theta + factor * direction
        value = field(theta)
    # A deterministic policy makes every gradient 0; such points at infinity do not count as solutions.
    converged = float(value.norm()) < 1e-11 and float(theta.abs().max()) < 50.0
    return theta if converged else None


def _slope(scalar: Tensor, parameter: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(scalar, parameter)
    return result


def _derivative(field: Field, theta: Tensor, step: float = 1e-6) -> Tensor:
    units = step * torch.eye(len(theta), dtype=theta.dtype)
    columns = [(field(theta + unit) - field(theta - unit)) / (2 * step) for unit in units]
    return torch.stack(columns, dim=-1)


def compatible_checks(seeds: Sequence[int]) -> list[Check]:
    """At a stationary point of policy evaluation, E_π[Q_θ ∇log π] is the true ∇J; elsewhere it is not."""
    results: dict[float, list[float]] = {1.0: [], 0.3: [], 3.0: []}
    elsewhere, other_head, sizes, tried = [], [], [], 0
    for seed in seeds:
        for tau, errors in results.items():
            agent, tried = linear_agent(seed, tau), tried + 1
            theta = stationary_point(agent.evaluation, agent.zeros())
            # The theorem does not claim that such a point exists, so problems without one are skipped.
            if theta is not None:
                errors.append(_gap(agent, theta))
                sizes.append(float(agent.policy_gradient(theta).norm()))
                elsewhere.append(_gap(agent, theta + 0.3))
        type1 = linear_agent(seed, 1.0, "type1")
        theta = stationary_point(type1.evaluation, type1.zeros())
        if theta is not None:
            other_head.append(_gap(type1, theta))
    details = {
        "relative_error_by_tau": {str(tau): errors for tau, errors in results.items()},
        "away_from_the_stationary_point": elsewhere,
        "type1_head_at_its_stationary_point": other_head,
        "gradient_norm": sizes,
    }
    measure = "largest relative error of the two gradients; linear features, d^π exact"
    return [
        identity(
            Statement(
                "compatible",
                "Where policy evaluation has settled, the head's own Q gives the true policy gradient (τ = 1)",
                "E_π[(Q^π - Q) ∇Q] = 0 and ∇Q = ∇log π => ∇J = E_π[Q ∇log π]",
                "theorem 2",
            ),
            measure,
            results[1.0],
            note=f"A settled point was found in {len(sizes)} of {tried} problems; |∇J| >= "
            f"{min(sizes, default=math.nan):.2g} there. Controls, relative error at least: away from it "
            f"{min(elsewhere, default=math.nan):.2g}, type 1 at its own {min(other_head, default=math.nan):.2g}.",
            details=details,
        ),
        identity(
            Statement(
                "compatible-tau",
                "The same for the CASA head at τ = 0.3 and 3, where the gradients are only proportional",
                "∇Q = τ ∇log π is enough",
                "theorem 2, extended",
            ),
            measure,
            results[0.3] + results[3.0],
        ),
    ]


def _gap(agent: LinearAgent, theta: Tensor) -> float:
    exact = agent.policy_gradient(theta)
    return float((agent.compatible_gradient(theta) - exact).norm() / exact.norm())
