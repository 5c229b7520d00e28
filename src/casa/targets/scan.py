"""Building blocks of the multi-step targets: a backward scan, clipped ratios and the one-step return."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from casa.targets.types import prepare, wide


def backward_scan(terms: Tensor, factors: Tensor, ends: Tensor) -> Tensor:
    """xₜ = aₜ + bₜ xₜ₊₁, where the second term is dropped at `ends` and at the last step.

    `terms` (a), `factors` (b) and `ends` are [T, B] at times 0 … T-1; so is the result. By doubling, O(log T)
    operations: with x summed over n steps and b their product, xₜ + bₜ xₜ₊ₙ is summed over 2n steps.
    """
    total, product, steps = terms, factors.masked_fill(ends, 0.0), 1
    length = terms.shape[0]
    while steps < length:
        left = length - steps
        total = torch.cat((torch.addcmul(total[:left], product[:left], total[steps:]), total[left:]))
        product = product[: left - steps] * product[steps:left] if left > steps else product
        steps *= 2
    return total


def clipped_ratios(log_rhos: Tensor, bar: float) -> Tensor:
    """ρ = min(exp(log π - log μ), ρ̄), detached; clipped before the exponential, so nothing overflows.

    `log_rhos` = log π(aₜ|sₜ) - log μ(aₜ|sₜ), any shape; `bar` is ρ̄ > 0, `math.inf` for no clipping.
    """
    if not bar > 0:
        raise ValueError(f"an importance ratio is clipped at a positive bound, got {bar}")
    # The second clamp removes the rounding error of exp(log ρ̄), so that the ratio never exceeds the bound.
    return wide(log_rhos.detach()).clamp(max=math.log(bar)).exp().clamp(max=bar)


def one_step(rewards: Tensor, discounts: Tensor, v_targets: Tensor, next_values: Tensor, ends: Tensor) -> Tensor:
    """Q^ₜ = rₜ + γₜ V^ₜ₊₁, where V^ₜ₊₁ is `next_values[t]` at `ends` and at the last step.

    All arguments are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁;
      discounts[t] = γ (1 - terminatedₜ);
      v_targets[t] = V^(sₜ);
      next_values[t] = V(sₜ₊₁), the final observation's value where the episode was truncated;
      ends[t] = terminatedₜ or truncatedₜ.
    """
    rewards, discounts, v_targets, next_values, ends = prepare(
        rewards=rewards, discounts=discounts, v_targets=v_targets, next_values=next_values, ends=ends
    )
    following = torch.cat([v_targets[1:], next_values[-1:]])
    return rewards + discounts * torch.where(ends.bool(), next_values, following)
