"""V-Trace (Espeholt et al. 2018): an off-policy estimate of V, and its policy gradient's advantage."""

from __future__ import annotations

from torch import Tensor

from casa.targets.scan import backward_scan, clipped_ratios, one_step
from casa.targets.types import prepare


def vtrace(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_rhos: Tensor,
    ends: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> Tensor:
    """V^ₜ = V(sₜ) + ρₜ δₜ + γₜ cₜ (V^ₜ₊₁ - V(sₜ₊₁)) with δₜ = rₜ + γₜ V(sₜ₊₁) - V(sₜ).

    ρₜ = min(ρ̄, πₜ/μₜ) and cₜ = min(c̄, πₜ/μₜ). The last term is dropped at `ends` and at the last step.

    All arguments are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁;
      discounts[t] = γ (1 - terminatedₜ);
      values[t] = V(sₜ);
      next_values[t] = V(sₜ₊₁), the final observation's value where the episode was truncated;
      log_rhos[t] = log π(aₜ|sₜ) - log μ(aₜ|sₜ);
      ends[t] = terminatedₜ or truncatedₜ: no trace crosses it.
    Returns V^ at times 0 … T-1, detached.
    """
    rewards, discounts, values, next_values, log_rhos, ends = prepare(
        rewards=rewards,
        discounts=discounts,
        values=values,
        next_values=next_values,
        log_rhos=log_rhos,
        ends=ends,
    )
    deltas = rewards + discounts * next_values - values
    terms = clipped_ratios(log_rhos, rho_bar) * deltas
    return values + backward_scan(terms, discounts * clipped_ratios(log_rhos, c_bar), ends.bool())


def vtrace_advantage(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    v_targets: Tensor,
    log_rhos: Tensor,
    ends: Tensor,
    rho_bar: float = 1.0,
) -> Tensor:
    """Ψₜ = ρₜ (rₜ + γₜ V^ₜ₊₁ - V(sₜ)), the weight of ∇ log π in IMPALA's policy gradient.

    V^ₜ₊₁ is `next_values[t]` at `ends` and at the last step. The arguments are those of `vtrace`, and
    v_targets[t] = V^(sₜ), its result, at times 0 … T-1. Returns Ψ at times 0 … T-1, detached, with ρ included:
    a loss that multiplies by ρ itself needs `one_step(...) - values` instead.
    """
    (values,) = prepare(values=values)
    returns = one_step(rewards, discounts, v_targets, next_values, ends)
    return clipped_ratios(log_rhos, rho_bar) * (returns - values)
