"""The table of policy losses: the variants of J."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from casa import losses, tables
from casa.config.fields import AgentConfig
from casa.losses import Loss


class PolicyTerms(NamedTuple):
    """Input of a policy loss, all [T, B]: log π(a|s) with its gradient, everything else detached.

    `log_mu` = log μ(a|s), `advantages` = Ψ and `rhos` = ρ of the estimator; `mask` is true at valid transitions,
    `weights` are importance weights (None: 1). `tau` multiplies J for tempered heads and is 1 for others.
    """

    log_pi: Tensor
    log_mu: Tensor
    advantages: Tensor
    rhos: Tensor | None
    tau: float | Tensor
    mask: Tensor
    weights: Tensor | None


PolicyLoss = Callable[[PolicyTerms, AgentConfig], Loss]


def score(p: PolicyTerms, agent: AgentConfig) -> Loss:
    """-J = -τ E[ρ Ψ log π]."""
    return losses.policy_loss(p.log_pi, p.advantages, p.tau, p.rhos, p.mask, p.weights)


def clip(p: PolicyTerms, agent: AgentConfig) -> Loss:
    """-J = -τ E[min(r Ψ, clip(r, 1 - ε, 1 + ε) Ψ)] with r = π/μ: PPO."""
    return losses.ppo_loss(p.log_pi, p.log_mu, p.advantages, agent.clip, p.tau, p.mask, p.weights)


def none(p: PolicyTerms, agent: AgentConfig) -> Loss:
    """0: no policy gradient."""
    return Loss(p.advantages.new_zeros(()), p.advantages.new_zeros(p.advantages.shape))


POLICY_LOSSES: tables.Table[PolicyLoss] = tables.POLICY_LOSSES
for _function in (none, score, clip):
    POLICY_LOSSES.add(_function.__name__, _function, __name__)
