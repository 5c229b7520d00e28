"""A head, a target, a reward and a recipe of your own, without a fork.

    casa train --plugin examples.plugin --recipe cautious --env CartPole-v1 --steps 150_000 --run-dir runs/cautious
    casa eval runs/cautious --trust

The head is dueling with the mean advantage subtracted; the target is V-Trace over n steps, so that old data says less
about the far future.
"""

from __future__ import annotations

import torch
from torch import Tensor

import casa
from casa.config.fields import AgentConfig
from casa.heads import HeadOutput, log_softmax
from casa.register import Estimate, Steps
from casa.targets import clipped_ratios


@casa.register.head("mean-dueling", outputs=("advantage", "value"), formula="π = softmax(A/τ); Q = A - mean(A) + sg(V)")
def mean_dueling(advantage: Tensor, value: Tensor, tau: float | Tensor) -> HeadOutput:
    """π = softmax(A/τ), Q = A - mean(A) + sg(V)."""
    centred = advantage - advantage.mean(-1, keepdim=True)
    return HeadOutput(value, centred + value.detach().unsqueeze(-1), log_softmax(advantage, tau))


@casa.register.target("short-vtrace", label="V-Trace, n steps")
def short_vtrace(s: Steps, agent: AgentConfig) -> Estimate:
    """V^ₜ = V(sₜ) + Σ_{k<n} γᵏ (∏ c) ρ δ, with n = agent.n_step; Q^ₜ = rₜ + γ V^ₜ₊₁."""
    rho, c = clipped_ratios(s.log_rhos, agent.rho_bar), clipped_ratios(s.log_rhos, agent.c_bar)
    delta = rho * (s.rewards + s.discounts * s.after.v - s.now.v)
    carry = (s.discounts * c).masked_fill(s.ends, 0.0)
    total = delta
    for _ in range(agent.n_step - 1):
        total = delta + carry * torch.cat((total[1:], torch.zeros_like(total[:1])))
    v = s.now.v + total
    following = torch.where(s.ends, s.after.v, torch.cat((v[1:], s.after.v[-1:])))
    q = s.rewards + s.discounts * following
    return Estimate(v, q, q - s.now.v, rho)


@casa.register.reward("hundredth", formula="r / 100")
def hundredth(rewards: Tensor) -> Tensor:
    """r/100, so that values are about 1."""
    return rewards / 100


casa.register.recipe(
    "cautious",
    base="casa",
    summary="casa with a mean-dueling head and short traces",
    settings={"agent.head": "mean-dueling", "agent.targets": "short-vtrace", "agent.reward": "hundredth",
              "agent.tau": 0.03, "agent.n_step": 10},
)
