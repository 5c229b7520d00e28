"""L_V, L_Q and J, plain and clipped, each with its per-element errors.

All losses are minimised: the negative gradient of a `Loss.value` is the ascent direction in the paper.
Arguments are [T, B] (any common shape works). Targets, advantages, ratios and weights are detached here, so
gradients flow only into V, Q and log π. Every loss is a mean over the elements where `mask` (bool) is true:
Σ weight · term / number of such elements, with importance `weights`. It is 0 if there are none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casa.actions import pick
from casa.heads import entropy
from casa.targets.types import wide

__all__ = ["Loss", "categorical_loss", "entropy", "policy_loss", "ppo_loss", "q_loss", "taken", "value_loss"]

# exp(50) times any advantage is far below the largest fp32 number; larger ratios are meaningless anyway.
_LOG_RATIO_LIMIT = 50.0


class Loss(NamedTuple):
    """(scalar to minimise, per-element errors [T, B]: detached, unweighted, 0 where masked out)."""

    value: Tensor
    errors: Tensor


def value_loss(values: Tensor, targets: Tensor, mask: Tensor | None = None, weights: Tensor | None = None) -> Loss:
    """L_V = ½ E[(V^ - V)²], so that -∇L_V = E[(V^ - V) ∇V]; errors are V^ - V.

    The paper writes L_V without the ½ and its gradient without the 2 (eq. 7); this loss has the paper's gradient.
    `values` = V(sₜ) and `targets` = V^ₜ at times 0 … T-1.
    """
    return _squared(values, targets, mask, weights)


def q_loss(q_taken: Tensor, targets: Tensor, mask: Tensor | None = None, weights: Tensor | None = None) -> Loss:
    """L_Q = ½ E[(Q^ - Q)²], so that -∇L_Q = E[(Q^ - Q) ∇Q]; errors are Q^ - Q.

    `q_taken` = Q(sₜ, aₜ) and `targets` = Q^ₜ at times 0 … T-1.
    """
    return _squared(q_taken, targets, mask, weights)


def categorical_loss(
    log_p_taken: Tensor, targets: Tensor, mask: Tensor | None = None, weights: Tensor | None = None
) -> Loss:
    """L_Q = E[KL(Z^ ‖ p)] = E[Σᵢ Z^ᵢ (log Z^ᵢ - log pᵢ)], with the gradient of the cross-entropy; errors are the terms.

    `log_p_taken` = log p(sₜ, aₜ) and `targets` = Z^ₜ, both [T, B, N], at times 0 … T-1; 0 log 0 = 0.
    """
    _same_shape(log_p_taken, targets=targets)
    over = None if mask is None else mask.unsqueeze(-1)
    z, log_p = _keep(over, targets.detach()), _keep(over, log_p_taken)
    terms = (torch.xlogy(z, z) - z * log_p).sum(-1)
    return Loss(_mean(terms, mask, weights), terms.detach())


def policy_loss(
    log_pi_taken: Tensor,
    advantages: Tensor,
    tau: float | Tensor = 1.0,
    rhos: Tensor | None = None,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
) -> Loss:
    """-J = -τ E[ρ Â log π], so that ∇J = E[τ ρ (Q^ - V) ∇ log π] (eq. 8); errors are the terms.

    `log_pi_taken` = log π(aₜ|sₜ), `advantages` = Q^ₜ - V(sₜ) and `rhos` = clipped πₜ/μₜ (1 when not given) at
    times 0 … T-1. `tau` is the temperature of a tempered head: the factor makes the gradient's scale independent
    of τ. Heads without temperature leave it at 1.
    """
    _same_shape(log_pi_taken, advantages=advantages, rhos=rhos, mask=mask, weights=weights)
    log_pi, advantages = _keep(mask, log_pi_taken), _keep(mask, advantages.detach())
    if rhos is not None:
        advantages = advantages * _keep(mask, rhos.detach())
    terms = -tau * advantages * log_pi
    return Loss(_mean(terms, mask, weights), terms.detach())


def ppo_loss(
    log_pi_taken: Tensor,
    behaviour_log_pi_taken: Tensor,
    advantages: Tensor,
    clip: float = 0.2,
    tau: float | Tensor = 1.0,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
) -> Loss:
    """-J = -τ E[min(r Â, clip(r, 1 - ε, 1 + ε) Â)] with r = π(aₜ|sₜ) / μ(aₜ|sₜ); errors are the terms.

    `log_pi_taken` = log π(aₜ|sₜ), `behaviour_log_pi_taken` = log μ(aₜ|sₜ) and `advantages` = Q^ₜ - V(sₜ) at
    times 0 … T-1; ε is `clip`. `tau` as in `policy_loss`: at r = 1 the two have the same gradient.
    """
    _same_shape(
        log_pi_taken,
        behaviour_log_pi_taken=behaviour_log_pi_taken,
        advantages=advantages,
        mask=mask,
        weights=weights,
    )
    advantages = _keep(mask, advantages.detach())
    log_ratio = _keep(mask, wide(log_pi_taken) - wide(behaviour_log_pi_taken.detach()))
    ratio = log_ratio.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
    terms = -tau * torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return Loss(_mean(terms, mask, weights), terms.detach())


def taken(x: Tensor, actions: Tensor) -> Tensor:
    """x(sₜ, aₜ): the entries of `x` [..., A] at `actions` [...], integers; returns [...], differentiable."""
    return pick(x, actions, sizes=None)


def _squared(predictions: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor | None) -> Loss:
    _same_shape(predictions, targets=targets, mask=mask, weights=weights)
    errors = _keep(mask, wide(targets.detach()) - wide(predictions))
    return Loss(_mean(0.5 * errors.square(), mask, weights), errors.detach())


def _keep(mask: Tensor | None, x: Tensor) -> Tensor:
    # Mask before any arithmetic, so that masked elements cannot put a NaN into a value or a gradient.
    x = wide(x)
    return x if mask is None else x.masked_fill(~mask.bool(), 0.0)


def _mean(terms: Tensor, mask: Tensor | None, weights: Tensor | None) -> Tensor:
    if weights is not None:
        terms = terms * _keep(mask, weights.detach())
    return terms.mean() if mask is None else terms.sum() / mask.bool().sum().clamp(min=1)


def _same_shape(reference: Tensor, **others: Tensor | None) -> None:
    for name, other in others.items():
        if other is not None and other.shape != reference.shape:
            raise ValueError(f"{name} has shape {tuple(other.shape)}, expected {tuple(reference.shape)}")
