"""From a batch and the network's outputs to losses: one table of estimators, one of policy losses, one of rewards.

A recipe names a row of each table; nothing here knows which recipe it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from casa import targets as T
from casa.heads import HEADS, HeadOutput
from casa.losses import Loss, entropy, policy_loss, ppo_loss, q_loss, taken, value_loss
from casa.schema import AgentConfig


class Steps(NamedTuple):
    """What the estimators see: the facts of T transitions [T, B], and the outputs at sₜ and at sₜ₊₁, all detached.

    `q` is Q of the taken action, None where there is no Q; `next_target_q` [T, B, A] is the target network's Q at sₜ₊₁.
    """

    rewards: Tensor
    discounts: Tensor
    ends: Tensor
    log_rhos: Tensor
    now: HeadOutput
    after: HeadOutput
    q: Tensor | None
    next_target_q: Tensor | None


class Estimate(NamedTuple):
    """V^, Q^ of the taken action, the policy gradient's advantage Ψ, and its clipped ratio ρ (None: 1)."""

    v: Tensor
    q: Tensor
    advantage: Tensor
    rhos: Tensor | None


def _gae(s: Steps, agent: AgentConfig) -> Estimate:
    """GAE(λ) for both; Ψ = Q^ - V."""
    v, q = T.gae(s.rewards, s.discounts, s.now.v, s.after.v, s.ends, agent.lam)
    return Estimate(v, q, q - s.now.v, None)


def _vtrace(s: Steps, agent: AgentConfig) -> Estimate:
    """V-Trace for V; Ψ = r + γ V^' - V, weighed by ρ."""
    v = T.vtrace(
        s.rewards, s.discounts, s.now.v, s.after.v, s.log_rhos, s.ends, rho_bar=agent.rho_bar, c_bar=agent.c_bar
    )
    q = T.one_step(s.rewards, s.discounts, v, s.after.v, s.ends)
    return Estimate(v, q, q - s.now.v, T.clipped_ratios(s.log_rhos, agent.rho_bar))


def _vtrace_retrace(s: Steps, agent: AgentConfig) -> Estimate:
    """V-Trace for V and for Ψ, ReTrace for Q."""
    assert s.q is not None
    base = _vtrace(s, agent)
    q = T.retrace(s.rewards, s.discounts, s.q, _mean_q(s.after), s.log_rhos, s.ends, c_bar=agent.c_bar)
    return base._replace(q=q)


def _dr_trace(s: Steps, agent: AgentConfig) -> Estimate:
    """DR-Trace for both; Ψ = Q^ - V, weighed by ρ."""
    assert s.q is not None
    v, q = T.dr_trace(
        s.rewards, s.discounts, s.now.v, s.after.v, s.q, s.log_rhos, s.ends, rho_bar=agent.rho_bar, c_bar=agent.c_bar
    )
    return Estimate(v, q, q - s.now.v, T.clipped_ratios(s.log_rhos, agent.rho_bar))


def _n_step_q(s: Steps, agent: AgentConfig) -> Estimate:
    """n-step double Q for Q; V^ = E_π[Q] + Q^ - Q, whose mean is E_π[Q^] where Q = Q^; Ψ = Q^ - V, times min(π/μ, 1).

    Data is ε-greedy, far from the surrogate π: weighed by π/μ, V would learn from a few steps in a hundred.
    """
    assert s.q is not None and s.after.q is not None and s.next_target_q is not None
    bootstrap = T.double_q(s.after.q, s.next_target_q)
    q = T.n_step_q(s.rewards, s.discounts, bootstrap, s.ends, agent.n_step, rescale=agent.value_rescale)
    return Estimate(_mean_q(s.now) + q - s.q, q, q - s.now.v, T.clipped_ratios(s.log_rhos, 1.0))


def _mean_q(out: HeadOutput) -> Tensor:
    """E_π[Q]."""
    assert out.q is not None
    return (out.log_pi.exp() * out.q).sum(-1)


ESTIMATORS: dict[str, Callable[[Steps, AgentConfig], Estimate]] = {
    "gae": _gae,
    "vtrace": _vtrace,
    "vtrace+retrace": _vtrace_retrace,
    "dr-trace": _dr_trace,
    "n-step-q": _n_step_q,
}
NEEDS_TARGET_NETWORK = {"n-step-q"}


def shape_reward(rewards: Tensor, kind: str) -> Tensor:
    """raw: r; clip01: clip(r, 0, 1); log: log(|r| + 1) · (2 if r >= 0 else -1)."""
    return REWARDS[kind](rewards)


REWARDS = {
    "raw": lambda r: r,
    "clip01": lambda r: r.clamp(0, 1),
    "log": lambda r: r.abs().log1p() * torch.where(r >= 0, 2.0, -1.0),
}


class Facts(NamedTuple):
    """The transitions of the trained part of a batch [T, B], and the weight of each sequence [B]."""

    actions: Tensor
    log_mu: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    weights: Tensor


class Objective(NamedTuple):
    """The loss to minimise, the TD errors that priorities come from [T, B], targets, and scalars to log."""

    loss: Tensor
    td_errors: Tensor
    estimate: Estimate
    scalars: dict[str, Tensor]


def objective(
    out: HeadOutput, target_q: Tensor | None, facts: Facts, agent: AgentConfig
) -> Objective:
    """α₁ L_V + α₂ L_Q - α₃ J - α_H H over the valid transitions, from outputs at T + 1 observations."""
    estimate, now, log_pi_taken, q_taken = _estimate(out, target_q, facts, agent)
    mask, weights = facts.valid, facts.weights.expand_as(facts.rewards)
    zero = out.v.new_zeros(())
    none = Loss(zero, torch.zeros_like(facts.rewards))
    alpha_v, alpha_q, alpha_pi = agent.weights
    loss_v = value_loss(now.v, estimate.v, mask, weights)
    loss_q = q_loss(q_taken, estimate.q, mask, weights) if q_taken is not None else none
    tau = agent.tau if HEADS[agent.head].tempered else 1.0
    if agent.policy_loss == "clip":
        loss_pi = ppo_loss(log_pi_taken, facts.log_mu, estimate.advantage, agent.clip, tau, mask, weights)
    elif agent.policy_loss == "score":
        loss_pi = policy_loss(log_pi_taken, estimate.advantage, tau, estimate.rhos, mask, weights)
    else:
        loss_pi = none
    entropies = entropy(now.log_pi)
    kept = mask.sum().clamp(min=1)
    mean_entropy = (entropies * mask).sum() / kept
    loss = alpha_v * loss_v.value - agent.entropy_cost * mean_entropy
    if alpha_q:
        loss = loss + alpha_q * loss_q.value
    if alpha_pi:
        loss = loss + alpha_pi * loss_pi.value

    def mean(x: Tensor) -> Tensor:
        return (x.detach() * mask).sum() / kept

    scalars = {
        "loss": loss.detach(),
        "loss_v": loss_v.value.detach(),
        "loss_q": loss_q.value.detach(),
        "loss_pi": loss_pi.value.detach(),
        "entropy": mean_entropy.detach(),
        "value": mean(now.v),
        "explained_variance": explained_variance(now.v, estimate.v, mask),
        "advantage_scale": mean(_spread(now)),
        "rho": mean((log_pi_taken - facts.log_mu).clamp(max=10).exp()),
        "shaped_reward": mean(shape_reward(facts.rewards, agent.reward)),
    }
    errors = loss_q.errors if q_taken is not None else loss_v.errors
    return Objective(loss, errors, estimate, scalars)


def explained_variance(v: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(V^ - V) / Var(V^) over the valid transitions: 1 if V tells states apart as V^ does, 0 if not at all.

    At least -1, and 0 where V^ is the same everywhere: one batch does not spoil the mean of many.
    """
    kept = mask.sum().clamp(min=1)

    def variance(x: Tensor) -> Tensor:
        x = x.where(mask, 0.0)
        return ((x - x.sum() / kept) ** 2).where(mask, 0.0).sum() / kept

    of_target = variance(target)
    share = 1 - variance(target - v.detach()) / of_target
    return share.clamp(min=-1).where(of_target > 1e-8, 0.0)


def _spread(out: HeadOutput) -> Tensor:
    """Standard deviation over actions of Q, or of log π where there is no Q: how far apart the actions are."""
    x = out.log_pi if out.q is None else out.q
    return x.detach().std(-1, correction=0)


def _estimate(
    out: HeadOutput, target_q: Tensor | None, facts: Facts, agent: AgentConfig
) -> tuple[Estimate, HeadOutput, Tensor, Tensor | None]:
    now = out.map(lambda x: x[:-1])
    after = out.map(lambda x: x[1:].detach())
    log_pi_taken = taken(now.log_pi, facts.actions)
    q_taken = None if now.q is None else taken(now.q, facts.actions)
    ends = facts.terminated | facts.truncated | ~facts.valid
    steps = Steps(
        rewards=shape_reward(facts.rewards, agent.reward),
        discounts=agent.discount * (~facts.terminated).float(),
        ends=ends,
        log_rhos=(log_pi_taken - facts.log_mu).detach(),
        now=now.map(lambda x: x.detach()),
        after=after,
        q=None if q_taken is None else q_taken.detach(),
        next_target_q=None if target_q is None else target_q[1:],
    )
    return ESTIMATORS[agent.targets](steps, agent), now, log_pi_taken, q_taken
