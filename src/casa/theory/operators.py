"""V-Trace, ReTrace and DR-Trace as operators on a finite MDP, with exact expectations under μ.

Q is [S, A] and V is [S]. The clipped ratios are ρ = min(π/μ, ρ̄) and c = min(π/μ, c̄). An expectation under μ with a
ratio is a sum with the weights μρ = min(π, ρ̄ μ) or μc = min(π, c̄ μ). The sum over a trace is
K = Σ_k (γ P_c)^k = (I - γ P_c)⁻¹, where P_c(s, s') = Σ_a μ c P(s'|s, a).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from casa.theory.mdp import FiniteMDP, clipped_policy


@dataclass(frozen=True)
class OffPolicy:
    """An off-policy evaluation problem: π is evaluated on data of μ, with ratios clipped at ρ̄ and c̄.

    `horizon` = n cuts every trace after n steps, as a training sequence does; None is an infinite trace.
    """

    mdp: FiniteMDP
    pi: Tensor
    mu: Tensor
    rho_bar: float
    c_bar: float
    horizon: int | None = None

    @cached_property
    def rho_weights(self) -> Tensor:
        """μ ρ = min(π, ρ̄ μ): [S, A]."""
        return torch.minimum(self.pi, self.rho_bar * self.mu)

    @cached_property
    def c_weights(self) -> Tensor:
        """μ c = min(π, c̄ μ): [S, A]."""
        return torch.minimum(self.pi, self.c_bar * self.mu)

    @cached_property
    def mass(self) -> Tensor:
        """α(s) = E_μ[ρ] = Σ_a min(π, ρ̄ μ), in (0, 1]: [S]."""
        return self.rho_weights.sum(-1)

    @cached_property
    def pi_tilde(self) -> Tensor:
        """π̃ = min(ρ̄ μ, π) / Σ: [S, A]."""
        return clipped_policy(self.pi, self.mu, self.rho_bar)

    @cached_property
    def traces(self) -> Tensor:
        """K = Σ_{k < n} (γ P_c)^k: [S, S]."""
        return self._sum_of_powers(self.horizon)

    @cached_property
    def later_traces(self) -> Tensor:
        """K at the next step, whose horizon is shorter by one: Σ_{k < n-1} (γ P_c)^k."""
        return self._sum_of_powers(None if self.horizon is None else self.horizon - 1)

    def _sum_of_powers(self, count: int | None) -> Tensor:
        step = self.mdp.discount * self.mdp.under(self.c_weights)
        identity = torch.eye(self.mdp.num_states, dtype=torch.float64)
        if count is None:
            return torch.linalg.inv(identity - step)
        total = torch.zeros_like(step)
        for _ in range(count):
            total = identity + step @ total
        return total

    def mean(self, q: Tensor) -> Tensor:
        """E_π[Q](s) = Σ_a π Q: [S, A] -> [S]."""
        return (self.pi * q).sum(-1)


Update = Callable[[OffPolicy, Tensor, Tensor], tuple[Tensor, Tensor]]


def v_trace(problem: OffPolicy, v: Tensor) -> Tensor:
    """V(s) + E_μ[Σ_k γ^k c_{[t:t+k-1]} ρ_{t+k} (r + γ V' - V)] (Espeholt et al. 2018)."""
    errors = problem.rho_weights * (problem.mdp.backup(v) - v.unsqueeze(-1))
    return v + problem.traces @ errors.sum(-1)


def retrace(problem: OffPolicy, q: Tensor) -> Tensor:
    """Q(s, a) + E_μ[Σ_k γ^k c_{[t+1:t+k]} (r + γ E_π[Q'] - Q)] (Munos et al. 2016)."""
    mdp = problem.mdp
    deltas = mdp.backup(problem.mean(q)) - q
    # After the first step, a trace sums the errors μ c δ of the states that it visits.
    following = problem.later_traces @ (problem.c_weights * deltas).sum(-1)
    return q + deltas + mdp.discount * mdp.transitions @ following


def dr_value(problem: OffPolicy, q: Tensor, v: Tensor) -> Tensor:
    """S(V) = V(s) + E_μ[Σ_k γ^k c_{[t:t+k-1]} ρ_{t+k} δ^DR_{t+k}], δ^DR = r + γ V' - Q (appendix D)."""
    return v + problem.traces @ _dr_errors(problem, q, v)


def dr_action(problem: OffPolicy, q: Tensor, v: Tensor) -> Tensor:
    """T(Q) = Q + E_μ[Σ_k γ^k c_{[t+1:t+k-1]} ρ̃_{t,k} δ^DR_{t+k}] = r + γ E[S(V)(s')] (appendix D)."""
    return problem.mdp.backup(v + problem.later_traces @ _dr_errors(problem, q, v))


def _dr_errors(problem: OffPolicy, q: Tensor, v: Tensor) -> Tensor:
    return (problem.rho_weights * (problem.mdp.backup(v) - q)).sum(-1)


def centred(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, V) <- (T - E_π[T] + S, S): fit both targets exactly with the head Q = A - E_π[A] + V."""
    return scaled(1.0)(problem, q, v)


def scaled(factor: float) -> Update:
    """(Q, V) <- (k (T - E_π[T]) + S, S): as `centred`, but Ā converges to k times the advantage."""

    def update(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        target, value = dr_action(problem, q, v), dr_value(problem, q, v)
        advantage = target - problem.mean(target).unsqueeze(-1)
        return factor * advantage + value.unsqueeze(-1), value

    return update


def literal(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """U(Q, V) = (T(Q) - E_π[Q] + S(V), S(V)), as theorem 4 is written."""
    value = dr_value(problem, q, v)
    return dr_action(problem, q, v) - problem.mean(q).unsqueeze(-1) + value.unsqueeze(-1), value


def with_old_baseline(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, V) <- (T(Q) - V + S(V), S(V)): theorem 4 as used in its proof, with V instead of E_π[Q]."""
    value = dr_value(problem, q, v)
    return dr_action(problem, q, v) - v.unsqueeze(-1) + value.unsqueeze(-1), value


def fitted_to_behaviour(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """argmin over centred Ā of E_μ[(T - V - Ā)²], then V <- S: L_Q averaged over the actions that μ took.

    With weights π instead of μ this is `centred`.
    """
    return with_policy_gradient(0.0)(problem, q, v)


def with_policy_gradient(ratio: float) -> Update:
    """Ā where α₂ E_μ[(T - Q) ∇Q] + α₃ E_μ[ρ τ (T - V) ∇log π] = 0, then V <- S; `ratio` is α₃/α₂.

    Ā = x - (π/μ) E_π[x] / Σ_a π²/μ with x = (1 + ratio ρ) (T - V): what the CASA head fits when L_Q and J are trained
    together on actions of μ, with π held fixed. A ratio of 0 is `fitted_to_behaviour`.
    """

    def update(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        target, value = dr_action(problem, q, v), dr_value(problem, q, v)
        pull = (1.0 + ratio * problem.rho_weights / problem.mu) * (target - v.unsqueeze(-1))
        over = problem.pi / problem.mu
        advantage = pull - over * (problem.mean(pull) / problem.mean(over)).unsqueeze(-1)
        return advantage + value.unsqueeze(-1), value

    return update


def gradient_step(value_weight: float, q_weight: float) -> Update:
    """One unit step of the ascent α₁ (S - V) on V and α₂ E_μ[(T - Q) ∇Q] on A, with Q = A - sg(π)·A + V.

    Small steps follow the same direction, so they are stable if all eigenvalues of L - I, with L the linear part of
    this update, have negative real parts (`Affine.abscissa`).
    """

    def update(problem: OffPolicy, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        errors = problem.mu * (dr_action(problem, q, v) - q)
        advantage = q - v.unsqueeze(-1)
        advantage = advantage + q_weight * (errors - problem.pi * errors.sum(-1, keepdim=True))
        advantage = advantage - problem.mean(advantage).unsqueeze(-1)
        value = v + value_weight * (dr_value(problem, q, v) - v)
        return advantage + value.unsqueeze(-1), value

    return update


def tied(problem: OffPolicy, q: Tensor) -> Tensor:
    """Q <- T(Q) with V = E_π[Q]: the operator of lemma E.3, which bounds |T(Q₁) - T(Q₂)|."""
    return dr_action(problem, q, problem.mean(q))


def centred_value(problem: OffPolicy, v: Tensor) -> Tensor:
    """V <- S with Ā = T - E_π[T] of the previous step: the update of V in `centred`, from its second step on.

    It is V + K diag(α) (E_π[r + γ P V] - V), so its fixed point solves the Bellman equation of π for every ρ̄ and c̄.
    """
    backup = problem.mdp.backup(v)
    return dr_value(problem, backup - (problem.mean(backup) - v).unsqueeze(-1), v)


def rate_bound(problem: OffPolicy) -> float:
    """max_s 1 - α(s) (1 - γ P_π 1) / (1 - γ P_c 1): a contraction rate of `centred`, for every ρ̄ and c̄.

    With x = (I - γ P_c) 1, it is the exact rate in the norm max_s |((I - γ P_c) V)(s)| / x(s).
    """
    mdp = problem.mdp
    lost = 1.0 - mdp.discount * mdp.under(problem.pi).sum(-1)
    scale = 1.0 - mdp.discount * mdp.under(problem.c_weights).sum(-1)
    return float((1.0 - problem.mass * lost / scale).max())
