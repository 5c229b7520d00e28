"""Generalised advantage estimation (Schulman et al. 2016): the λ-return of on-policy data."""

from __future__ import annotations

from torch import Tensor

from casa.targets.scan import backward_scan
from casa.targets.types import Targets, prepare


def gae(rewards: Tensor, discounts: Tensor, values: Tensor, next_values: Tensor, ends: Tensor, lam: float) -> Targets:
    """Âₜ = δₜ + γₜ λ Âₜ₊₁ with δₜ = rₜ + γₜ V(sₜ₊₁) - V(sₜ); V^ₜ = Q^ₜ = V(sₜ) + Âₜ, the λ-return.

    Âₜ₊₁ is dropped at `ends` and at the last step. The policy gradient's advantage is Q^ₜ - V(sₜ) = Âₜ.

    All arguments are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁;
      discounts[t] = γ (1 - terminatedₜ);
      values[t] = V(sₜ);
      next_values[t] = V(sₜ₊₁), the final observation's value where the episode was truncated;
      ends[t] = terminatedₜ or truncatedₜ: no trace crosses it;
      lam = λ.
    Returns V^ and Q^ of the taken action at times 0 … T-1, detached (both are the same tensor).
    """
    rewards, discounts, values, next_values, ends = prepare(
        rewards=rewards, discounts=discounts, values=values, next_values=next_values, ends=ends
    )
    deltas = rewards + discounts * next_values - values
    returns = values + backward_scan(deltas, discounts * lam, ends.bool())
    return Targets(returns, returns)
