"""C51's targets: n-step returns of a distribution on fixed atoms (Bellemare et al. 2017; Hessel et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from casa.targets.n_step_q import h, h_inverse
from casa.targets.scan import one_step
from casa.targets.types import prepare, wide

Support = tuple[float, float]
"""(the lowest atom, the highest)."""


def atoms(support: Support, count: int, like: Tensor) -> Tensor:
    """zᵢ = low + i (high - low)/(N - 1), i = 0 … N - 1: [N], in the dtype and on the device of `like`."""
    return torch.linspace(*support, count, dtype=like.dtype, device=like.device)


def project(values: Tensor, probabilities: Tensor, support: Support, count: int) -> Tensor:
    """Φᵢ = Σⱼ max(0, 1 - |clip(xⱼ, z₀, z_{N-1}) - zᵢ|/Δz) pⱼ (eq. 7 of C51): a distribution on the `count` atoms z.

    `values` x and `probabilities` p are [..., M]; returns [..., N]. Each mass goes to the two nearest atoms, so that
    the sum of all is kept, and so is the mean of what lies inside the support. One [..., N, M] operation instead of a
    scatter: its order of summation is fixed on every device.
    """
    low, high = support
    probabilities = wide(probabilities)
    # In units of Δz from z₀: rounded atoms far from 0 would lose mass.
    place = (wide(values).clamp(low, high) - low) * ((count - 1) / (high - low))
    index = torch.arange(count, dtype=place.dtype, device=place.device).unsqueeze(-1)
    distance = (place.unsqueeze(-2) - index).abs()
    return ((1 - distance).clamp(min=0) * probabilities.unsqueeze(-2)).sum(-1)


def n_step_categorical(
    rewards: Tensor,
    discounts: Tensor,
    next_probabilities: Tensor,
    ends: Tensor,
    n: int,
    support: Support,
    rescale: bool = False,
    epsilon: float = 1e-3,
) -> Tensor:
    """Z^ₜ = Φ(Rₜ + Γₜ z, p(sₜ₊ₘ)) with Rₜ = Σ_{i<m} γⁱ rₜ₊ᵢ and Γₜ = γᵐ: the projected n-step return of Rainbow.

    m = n, but fewer where an episode or the sequence ends: the sum stops there, as in `n_step_q`, and bootstraps from
    that step's `next_probabilities`. After a termination Γₜ = 0, and all mass is at Rₜ.

    `next_probabilities` is [T, B, N], all others are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁;
      discounts[t] = γ (1 - terminatedₜ);
      next_probabilities[t] = p(sₜ₊₁, a*) of the atoms z with a* = argmax Q_online(sₜ₊₁, ·), of the target network, at
        the final observation where the episode was truncated;
      ends[t] = terminatedₜ or truncatedₜ: no sum crosses it;
      rescale: whether the atoms are values of h(return): the return is then h(Rₜ + Γₜ h⁻¹(z)).
    Returns the probabilities Z^ [T, B, N] of the taken actions, detached.
    """
    if n < 1:
        raise ValueError(f"n_step_categorical looks at least one step ahead, got n = {n}")
    rewards, discounts, ends = prepare(rewards=rewards, discounts=discounts, ends=ends)
    if next_probabilities.shape[:-1] != rewards.shape:
        shape = tuple(next_probabilities.shape)
        raise ValueError(f"next_probabilities has shape {shape}, expected {(*rewards.shape, 'N')}")
    probabilities = wide(next_probabilities.detach())
    steps, ends = rewards.shape[0], ends.bool()
    zero, one = torch.zeros_like(rewards), torch.ones_like(rewards)
    times = torch.arange(steps, device=rewards.device).view(-1, *(1,) * (rewards.dim() - 1)).expand(rewards.shape)
    total, factor, last = rewards, discounts, times  # Rₜ, Γₜ and t + m - 1
    for _ in range(min(n, steps) - 1):
        total = one_step(rewards, discounts, total, zero, ends)
        factor = one_step(zero, discounts, factor, one, ends)
        last = torch.where(ends, times, torch.cat((last[1:], times[-1:])))
    following = probabilities.gather(0, last.unsqueeze(-1).expand_as(probabilities))
    z = atoms(support, probabilities.shape[-1], probabilities)
    values = total.unsqueeze(-1) + factor.unsqueeze(-1) * (h_inverse(z, epsilon) if rescale else z)
    return project(h(values, epsilon) if rescale else values, following, support, len(z))
