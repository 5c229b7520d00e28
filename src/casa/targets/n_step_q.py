"""R2D2's target (Kapturowski et al. 2019): n-step double Q through the value rescaling h."""

from __future__ import annotations

from torch import Tensor

from casa.targets.scan import one_step
from casa.targets.types import prepare, wide


def n_step_q(
    rewards: Tensor,
    discounts: Tensor,
    next_values: Tensor,
    ends: Tensor,
    n: int,
    rescale: bool = True,
    epsilon: float = 1e-3,
) -> Tensor:
    """Q^ₜ = h(Σ_{i<n} γⁱ rₜ₊ᵢ + γⁿ h⁻¹(Double(Qₜ₊ₙ))), by G¹ₜ = rₜ + γₜ Nₜ and Gᵐₜ = rₜ + γₜ Gᵐ⁻¹ₜ₊₁.

    N is h⁻¹(next_values). Where an episode or the sequence ends before n steps, the sum stops there and
    bootstraps from that step's `next_values` (with discount 0 after a termination). Each of the
    min(n, T) passes is over all times at once, so the cost is O(nT) and the depth n.

    All arguments are [T, B] at times 0 … T-1:
      rewards[t] = rₜ, of the transition sₜ → sₜ₊₁, not rescaled;
      discounts[t] = γ (1 - terminatedₜ);
      next_values[t] = Double(Qₜ₊₁), see `double_q`, or another estimate of that value, as the network outputs it
        (rescaled by h if `rescale`), at the final observation where the episode was truncated;
      ends[t] = terminatedₜ or truncatedₜ: no sum crosses it;
      rescale: whether the network's values are h(return); if false, h is the identity.
    Returns Q^ of the taken actions at times 0 … T-1, detached.
    """
    if n < 1:
        raise ValueError(f"n_step_q looks at least one step ahead, got n = {n}")
    rewards, discounts, next_values, ends = prepare(
        rewards=rewards, discounts=discounts, next_values=next_values, ends=ends
    )
    bootstraps = h_inverse(next_values, epsilon) if rescale else next_values
    returns = rewards + discounts * bootstraps
    for _ in range(min(n, rewards.shape[0]) - 1):
        returns = one_step(rewards, discounts, returns, bootstraps, ends)
    return h(returns, epsilon) if rescale else returns


def double_q(q_online: Tensor, q_target: Tensor) -> Tensor:
    """Double(Q) = Q_target(s, argmaxₐ Q_online(s, a)): [..., A] both; returns [...], detached."""
    if q_online.shape != q_target.shape:
        raise ValueError(f"q_target has shape {tuple(q_target.shape)}, expected {tuple(q_online.shape)}")
    best = q_online.detach().argmax(-1, keepdim=True)
    return q_target.detach().gather(-1, best).squeeze(-1)


def h(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """h(x) = sign(x)(√(|x| + 1) - 1) + εx, any shape, fp32 or better.

    Computed as x / (√(|x| + 1) + 1) + εx, which is equal but has no cancellation near 0.
    """
    x = wide(x)
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def h_inverse(y: Tensor, epsilon: float = 1e-3) -> Tensor:
    """h⁻¹(y) = sign(y)(((√(1 + 4ε(|y| + 1 + ε)) - 1) / 2ε)² - 1), any shape, fp32 or better.

    With w = √(|x| + 1) - 1, h(|x|) = |y| becomes εw² + (1 + 2ε)w = |y|. Its positive root, in the form without
    cancellation, is w = 2|y| / ((1 + 2ε) + √((1 + 2ε)² + 4ε|y|)); then |x| = w(w + 2). Also valid for ε = 0.
    """
    y = wide(y)
    linear = 1 + 2 * epsilon
    slope = 2 / (linear + (linear**2 + 4 * epsilon * y.abs()).sqrt())  # w / |y|
    return y * slope * (slope * y.abs() + 2)
