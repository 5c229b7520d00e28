"""Statements about L_Q, J and the entropy of π, exact over actions; and the greedy limit τ -> 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casa.heads import log_softmax
from casa.losses import entropy, policy_loss, q_loss
from casa.theory.check import Check, Statement, below, identity
from casa.theory.gradients import Setting, settings
from casa.theory.mdp import seeded
from casa.theory.network import cosines, gradient, jacobian, relative_error


@dataclass(frozen=True)
class Directions:
    """Ascent directions over all states, exact over actions: ∇L_Q, ∇J and ∇H[π], each [|θ|]."""

    q: Tensor
    policy: Tensor
    entropy: Tensor


def directions(setting: Setting, targets: Tensor, weights: Tensor | None = None) -> Directions:
    """-∇ of the library's losses with Q^ = `targets` [N, A] and actions weighted by `weights` [N, A] (π if None)."""
    head = setting.head("casa")
    assert head.q is not None
    weights = head.log_pi.exp().detach() if weights is None else weights
    weights = weights * weights.shape[-1]  # turns the losses' mean over actions into a sum
    advantages = targets - head.v.detach().unsqueeze(-1)
    q_value = q_loss(head.q, targets, weights=weights).value
    policy_value = policy_loss(head.log_pi, advantages, setting.tau, weights=weights).value
    return Directions(
        -gradient(q_value, setting.parameters),
        -gradient(policy_value, setting.parameters),
        gradient(entropy(head.log_pi).mean(), setting.parameters),
    )


def entropy_checks(seeds: Sequence[int]) -> list[Check]:
    """Lemma E.2 and eq. 13: L_Q is J with an entropy bonus τ² H, also off-policy; does χ = 1 imply cos β = 1?"""
    lemma, regularised, off_policy, betas, overshoot = [], [], [], [], []
    for setting in settings(seeds):
        head = setting.head("casa")
        assert head.q is not None
        pi = head.log_pi.exp().detach()
        grad_log_pi = jacobian(head.log_pi, setting.parameters)
        weight = pi * (head.q - head.v.unsqueeze(-1)).detach()
        left = (weight.unsqueeze(-1) * grad_log_pi).sum(-2)
        lemma.append(relative_error(left, -setting.tau * jacobian(entropy(head.log_pi), setting.parameters)))

        targets = head.q.detach() + torch.randn(pi.shape, generator=setting.generator, dtype=pi.dtype)
        ascent = directions(setting, targets)
        bonus = setting.tau**2 * ascent.entropy
        regularised.append(relative_error(ascent.policy + bonus, ascent.q))
        betas.append(float(cosines(ascent.q, ascent.policy)))
        halved = head.v.detach().unsqueeze(-1) + 0.5 * (head.q - head.v.unsqueeze(-1)).detach()
        over = directions(setting, halved)
        overshoot.append(float(cosines(over.q, over.policy)))

        mu = torch.randn(pi.shape, generator=setting.generator, dtype=pi.dtype).softmax(-1)
        ascent = directions(setting, targets, mu)
        off_policy.append(relative_error(ascent.policy + bonus, ascent.q))
    return [
        identity(
            Statement(
                "entropy-lemma",
                "The policy gradient with the head's own Q is the negative gradient of the entropy",
                "E_π[(Q - V) ∇log π] = -τ ∇H[π]",
                "lemma E.2",
            ),
            "largest relative error over states, τ and seeds",
            lemma,
        ),
        identity(
            Statement(
                "entropy-bonus",
                "Following L_Q is following J with an entropy bonus",
                "∇L_Q = ∇J + τ² ∇H[π]",
                "eq. 13",
            ),
            "largest relative error, any targets, actions weighted by π",
            regularised,
        ),
        identity(
            Statement(
                "entropy-bonus-off-policy",
                "The same where actions are those of a behaviour policy, as in replay, without ratios",
                "E_μ[(Q^ - Q) ∇Q] = E_μ[τ (Q^ - V) ∇log π] + τ² ∇H[π]",
                "extra (eq. 13 off-policy)",
            ),
            "largest relative error, actions weighted by a random μ",
            off_policy,
            note="Lemma E.2 needs the mean over π; under μ, E_μ[(Q - V) ∇Q] takes the place of -τ² ∇H.",
        ),
        identity(
            Statement(
                "chi-beta",
                "χ = 1 makes the directions of L_Q and J parallel",
                "χ = 1 => cos β = 1",
                'extra (sec. 3.1 hopes for "closer to 1")',
            ),
            "largest 1 - cos β, CASA head",
            [1 - value for value in betas + overshoot],
            note=f"Random targets: cos β from {min(betas):.2f} to {max(betas):.2f}; "
            f"it is {max(overshoot):.0f} where Q - V is twice the true advantage.",
            details={"random_targets": betas, "twice_the_advantage": overshoot},
        ),
    ]


def greedy_checks(seeds: Sequence[int]) -> list[Check]:
    """softmax(A/τ) -> argmax A as τ -> 0 (appendix B), with its rate."""
    ratios, ties = [], []
    for seed in seeds:
        advantage = torch.randn(6, 4, generator=seeded(seed, purpose=2), dtype=torch.float64)
        best = advantage.topk(2, dim=-1)
        gap = best.values[:, 0] - best.values[:, 1]
        for fraction in (1.0, 0.3, 0.1, 0.03):
            tau = float(gap.min()) * fraction
            others = log_softmax(advantage, tau).exp().scatter(-1, best.indices[:, :1], 0.0).sum(-1)
            ratios += (others / (3 * torch.exp(-gap / tau))).nan_to_num(0.0).tolist()
        tied = torch.cat([advantage, advantage.amax(-1, keepdim=True)], dim=-1)
        ties.append(float((log_softmax(tied, 1e-3 * float(gap.min())).exp().amax(-1) - 0.5).abs().max()))
    return [
        below(
            Statement(
                "greedy-limit",
                "softmax(A/τ) goes to the greedy policy as τ goes to 0, exponentially in gap/τ",
                "1 - π(a*) <= (|A| - 1) exp(-gap/τ)",
                "appendix B",
            ),
            "largest ratio of the two sides, τ from gap to 0.03 gap",
            ratios,
            1.0,
            note=f"With two equal best actions the limit is one half each, not argmax (distance {max(ties):.0e}).",
        )
    ]
