"""Trust region of off-policy returns (LASER: Schmitt, Hessel and Simonyan, 2020)."""

from __future__ import annotations

import math

from torch import Tensor

from casa.targets.types import prepare


def trust_region(log_rhos: Tensor, divergences: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """λₜ = [KL(π(·|sₜ) ‖ μ(·|sₜ)) < b] and the ratios λₜ πₜ/μₜ, as logarithms: (log_rhos, λ), both [T, B].

    With them V-Trace is V^ₜ = V(sₜ) + λₜ (ρₜ δₜ + γₜ cₜ (V^ₜ₊₁ - V(sₜ₊₁))), eq. 8 of LASER: outside the trust region
    V^ₜ = V(sₜ), so a return that comes there bootstraps from V. The same holds for DR-Trace, and for ReTrace with
    E_π[Q]. A loss must leave out the transitions with λₜ = 0 as well.

    LASER takes the divergence to the policy that V-Trace implies, π̃ ∝ min(ρ̄ μ, π), in the place of μ. That has a closed
    form only for a single choice; KL(π ‖ μ) has one for every action space.

      log_rhos[t] = log π(aₜ|sₜ) - log μ(aₜ|sₜ);
      divergences[t] = KL(π(·|sₜ) ‖ μ(·|sₜ));
      threshold = b > 0.
    """
    if not threshold > 0:
        raise ValueError(f"a trust region has a positive threshold, got {threshold}")
    log_rhos, divergences = prepare(log_rhos=log_rhos, divergences=divergences)
    trusted = divergences < threshold
    return log_rhos.masked_fill(~trusted, -math.inf), trusted
