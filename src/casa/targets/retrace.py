"""ReTrace (Munos et al. 2016): an off-policy estimate of Q at the taken actions."""

from __future__ import annotations

import torch
from torch import Tensor

from casa.targets.scan import backward_scan, clipped_ratios
from casa.targets.types import prepare


def retrace(
    rewards: Tensor,
    discounts: Tensor,
    q_taken: Tensor,
    next_values: Tensor,
    log_rhos: Tensor,
    ends: Tensor,
    c_bar: float = 1.0,
) -> Tensor:
    """Q^ₜ = rₜ + γₜ (E_π[Q(sₜ₊₁, ·)] + cₜ₊₁ (Q^ₜ₊₁ - Q(sₜ₊₁, aₜ₊₁))) with cₜ = min(c̄, πₜ/μₜ).

    The cₜ₊₁ term is dropped at `ends` and at the last step. The ratio at t itself is not used: aₜ is given.

    All arguments are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁;
      discounts[t] = γ (1 - terminatedₜ);
      q_taken[t] = Q(sₜ, aₜ);
      next_values[t] = E_π[Q(sₜ₊₁, ·)], at the final observation where the episode was truncated;
      log_rhos[t] = log π(aₜ|sₜ) - log μ(aₜ|sₜ);
      ends[t] = terminatedₜ or truncatedₜ: no trace crosses it.
    Returns Q^ of the taken actions at times 0 … T-1, detached.
    """
    rewards, discounts, q_taken, next_values, log_rhos, ends = prepare(
        rewards=rewards,
        discounts=discounts,
        q_taken=q_taken,
        next_values=next_values,
        log_rhos=log_rhos,
        ends=ends,
    )
    deltas = rewards + discounts * next_values - q_taken
    traces = clipped_ratios(log_rhos, c_bar)
    next_traces = torch.cat([traces[1:], torch.zeros_like(traces[:1])])
    return q_taken + backward_scan(deltas, discounts * next_traces, ends.bool())
