"""DR-Trace (the paper's appendix "DR-Trace"): V and Q estimated together, doubly robust."""

from __future__ import annotations

from torch import Tensor

from casa.targets.scan import backward_scan, clipped_ratios, one_step
from casa.targets.types import Targets, prepare


def dr_trace(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    q_taken: Tensor,
    log_rhos: Tensor,
    ends: Tensor,
    rho_bar: float = 1.05,
    c_bar: float = 1.05,
) -> Targets:
    """V^ₜ = V(sₜ) + ρₜ δₜ + γₜ cₜ (V^ₜ₊₁ - V(sₜ₊₁)) and Q^ₜ = rₜ + γₜ V^ₜ₊₁.

    δₜ = rₜ + γₜ V(sₜ₊₁) - Q(sₜ, aₜ), ρₜ = min(ρ̄, πₜ/μₜ) and cₜ = min(c̄, πₜ/μₜ). At `ends` and at the last
    step the c term is dropped and V^ₜ₊₁ in Q^ₜ is `next_values[t]`. The policy gradient's
    advantage is ρₜ (Q^ₜ - V(sₜ)).

    All arguments are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁;
      discounts[t] = γ (1 - terminatedₜ);
      values[t] = V(sₜ);
      next_values[t] = V(sₜ₊₁), the final observation's value where the episode was truncated;
      q_taken[t] = Q(sₜ, aₜ);
      log_rhos[t] = log π(aₜ|sₜ) - log μ(aₜ|sₜ);
      ends[t] = terminatedₜ or truncatedₜ: no trace crosses it.
    Returns V^ and Q^ of the taken actions at times 0 … T-1, detached.
    """
    rewards, discounts, values, next_values, q_taken, log_rhos, ends = prepare(
        rewards=rewards,
        discounts=discounts,
        values=values,
        next_values=next_values,
        q_taken=q_taken,
        log_rhos=log_rhos,
        ends=ends,
    )
    deltas = rewards + discounts * next_values - q_taken
    terms = clipped_ratios(log_rhos, rho_bar) * deltas
    v = values + backward_scan(terms, discounts * clipped_ratios(log_rhos, c_bar), ends.bool())
    return Targets(v, one_step(rewards, discounts, v, next_values, ends))
