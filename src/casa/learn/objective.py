"""The loss of a batch, from the network's outputs.

The configuration selects one entry of each table: targets, policy loss, reward. Nothing here depends on the recipe.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from casa.config.fields import AgentConfig
from casa.heads import HEADS, CategoricalOutput, HeadOutput
from casa.learn.estimators import TARGETS, Estimate, Steps
from casa.learn.policy_losses import POLICY_LOSSES, PolicyTerms
from casa.learn.rewards import REWARDS
from casa.losses import Loss, categorical_loss, q_loss, value_loss
from casa.targets import trust_region

LARGEST_REWARD = 10.0
"""In units of the return's standard deviation: the first reward of a sparse environment is far larger than that."""


SMALLEST_ADVANTAGE = 1e-3
"""Lower bound of σ, in units of the return's standard deviation: smaller advantages are errors of V."""


class TrainedSteps(NamedTuple):
    """The transitions [T, B] after the burn-in (actions [T, B, ...]), and the sequences' loss weights [B] (None: 1)."""

    actions: Tensor
    log_mu: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    weights: Tensor | None
    scale: Tensor | None = None
    """Standard deviation of returns, by which shaped rewards are divided; None: 1."""
    policy: Tensor | None = None
    """`log_pi` of the network that acted [T, B, A]; None without a trust region."""
    tau_left: Tensor | None = None
    """The share of `agent.tau` that is left; None: 1."""


class Objective(NamedTuple):
    """The loss to minimise, the TD errors for the priorities [T, B], the targets, and scalars to log.

    `weighted` are the losses that `loss` is the sum of: α₁ L_V, α₂ L_Q and -α₃ J - α_H H, without those of weight 0.
    """

    loss: Tensor
    weighted: list[Tensor]
    td_errors: Tensor
    estimate: Estimate
    scalars: dict[str, Tensor]


def objective(
    out: HeadOutput, target: HeadOutput | None, trained: TrainedSteps, agent: AgentConfig, log: bool = True
) -> Objective:
    """α₁ L_V + α₂ L_Q - α₃ J - α_H H over the valid transitions, from outputs at T + 1 observations.

    `target` is the target network's output at the same observations, None if the targets need none. A transition
    outside `agent.trust_region` adds 0 to every term. Without `log` there are no scalars.
    """
    now = out.times(None, -1)
    log_pi = now.log_prob(trained.actions)
    q = None if now.q is None else now.q_of(trained.actions)
    rewards = REWARDS[agent.reward](trained.rewards)
    scale = out.v.new_ones(()) if trained.scale is None else trained.scale
    if trained.scale is not None:
        rewards = (rewards / scale).clamp(-LARGEST_REWARD, LARGEST_REWARD)
    log_rhos, trusted = (log_pi - trained.log_mu).detach(), trained.valid
    if agent.trust_region:
        assert trained.policy is not None
        log_rhos, inside = trust_region(log_rhos, now.detach().divergence(trained.policy), agent.trust_region)
        trusted = trusted & inside
    steps = Steps(
        rewards=rewards,
        discounts=agent.discount * (~trained.terminated).float(),
        ends=trained.terminated | trained.truncated | ~trained.valid,
        log_rhos=log_rhos,
        now=now.detach(),
        after=out.times(1, None).detach(),
        q=None if q is None else q.detach(),
        after_target=None if target is None else target.times(1, None),
    )
    estimate = TARGETS[agent.targets](steps, agent)

    mask, weights = trained.valid, None if trained.weights is None else trained.weights.expand_as(rewards)
    if agent.trust_region:
        weights = trusted.to(rewards.dtype) if weights is None else weights * trusted
    tau: float | Tensor = agent.tau if HEADS[agent.head].tempered else 1.0
    tau = tau if trained.tau_left is None else tau * trained.tau_left
    loss_v = value_loss(now.v, estimate.v, mask, weights)
    loss_q = Loss(torch.zeros_like(loss_v.value), torch.zeros_like(rewards))
    if estimate.z is not None:
        assert isinstance(now, CategoricalOutput)
        loss_q = categorical_loss(now.log_p_of(trained.actions), estimate.z, mask, weights)
    elif q is not None:
        loss_q = q_loss(q, estimate.q, mask, weights)
    kept = mask.sum().clamp(min=1)

    def mean(x: Tensor, where: Tensor = mask) -> Tensor:
        return (x * where).sum() / kept

    # Where V is behind a rising return, all advantages are positive, and each action that was tried would be pushed up.
    psi = estimate.advantage
    if agent.advantage_centre:
        psi = psi - psi.masked_fill(~trusted, 0.0).sum() / trusted.sum().clamp(min=1)
    terms = PolicyTerms(log_pi, trained.log_mu, psi, estimate.rhos, tau, mask, weights)
    loss_pi = POLICY_LOSSES[agent.policy_loss](terms, agent)
    loss, weighted = torch.zeros_like(loss_v.value), []
    entropy = mean(now.entropy(), trusted) if agent.entropy_cost else None
    if entropy is not None:
        loss = -agent.entropy_cost * entropy
    unit = advantage_unit(estimate.advantage, trusted, agent, tau)
    # Skip a term of weight 0 instead of multiplying: it may be infinite, and 0 · inf is NaN.
    for weight, term in zip(agent.weights, (loss_v.value, loss_q.value / unit, loss_pi.value / unit), strict=True):
        if weight:
            weighted.append(weight * term)
            loss = weighted[-1] + loss
    if entropy is not None:  # a part of J, or a term of its own without J
        bonus = -agent.entropy_cost * entropy
        weighted = [*weighted[:-1], weighted[-1] + bonus] if agent.weights[2] else [*weighted, bonus]
    scalars = {}
    if log:
        with torch.no_grad():
            log_ratio = (log_pi - trained.log_mu).masked_fill(~mask, 0.0).clamp(max=10)
            ratio = log_ratio.exp()
            scalars = {
                "loss_v": loss_v.value.detach(),
                "loss_q": loss_q.value.detach(),
                "loss_pi": loss_pi.value.detach(),
                "entropy": mean(steps.now.entropy()) if entropy is None or trusted is not mask else entropy.detach(),
                "value": mean(now.v) * scale,
                "return_scale": scale.clone(),
                "explained_variance": explained_variance(now.v, estimate.v, mask),
                "advantage_scale": mean(now.spread()) * scale,
                "rho": mean(ratio),
                "kl": mean(ratio - 1 - log_ratio),
                "clip_fraction": mean(((ratio - 1).abs() > agent.clip).to(ratio.dtype)),
                "shaped_reward": mean(rewards) * scale,
            }
            if isinstance(tau, Tensor):
                scalars["tau"] = tau
            if agent.trust_region:
                scalars["trusted"] = mean(trusted)
            if estimate.z is not None:
                scalars["edge_mass"] = mean(estimate.z[..., 0] + estimate.z[..., -1])
    errors = loss_v.errors if q is None else loss_q.errors
    return Objective(loss, weighted, errors if trusted is mask else errors * trusted, estimate, scalars)


def advantage_unit(advantages: Tensor, mask: Tensor, agent: AgentConfig, tau: float | Tensor) -> Tensor | float:
    """u σ with σ² = E[Ψ²], by which L_Q and J are divided; 1 without `advantage_norm`.

    u is the unit of the network's output: τ if it is A/τ, else 1. Then a transition whose Ψ is typical changes that
    output equally, whatever the rewards and the temperature.
    """
    if not agent.advantage_norm:
        return 1.0
    squares = advantages.masked_fill(~mask, 0.0).square()
    sigma = (squares.sum() / mask.sum().clamp(min=1)).sqrt().clamp(min=SMALLEST_ADVANTAGE)
    return sigma * tau if agent.advantage_unit == "tau" else sigma


def explained_variance(v: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(V^ - V) / Var(V^) over the valid transitions: 1 if V explains all variance of V^, 0 if none.

    At least -1, and 0 if V^ is constant, so that a single batch does not dominate the mean of many.
    """
    kept = mask.sum().clamp(min=1)

    def variance(x: Tensor) -> Tensor:
        x = x.where(mask, 0.0)
        return ((x - x.sum() / kept) ** 2).where(mask, 0.0).sum() / kept

    of_target = variance(target)
    share = 1 - variance(target - v.detach()) / of_target
    return share.clamp(min=-1).where(of_target > 1e-8, 0.0)
