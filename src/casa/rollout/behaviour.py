"""Behaviour policies μ: sample from π, ε-greedy on Q with one ε per environment, or greedy on a noisy Q."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from casa import tables
from casa.actions import is_continuous
from casa.heads import HeadOutput


@dataclass(frozen=True)
class Behaviour:
    """`act(out, epsilons [N], generator)` -> (actions [N, ...], log μ(a|s) [N]), and its deterministic version.

    `greedy`: the deterministic action, used by greedy evaluation. `needs_q`: only for heads with Q. `choose(out,
    drawn)`: the same as `act` for numbers that `HeadOutput.noise` drew, which can be compiled; None: there is no such.
    Without `takes_epsilon` the epsilons are ignored.
    """

    act: Callable[[HeadOutput, Tensor, torch.Generator], tuple[Tensor, Tensor]]
    greedy: Callable[[HeadOutput], Tensor]
    needs_q: bool = False
    choose: Callable[[HeadOutput, list[Tensor]], tuple[Tensor, Tensor]] | None = None
    takes_epsilon: bool = True

    def __call__(self, out: HeadOutput, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(actions, log μ)."""
        return self.act(out, epsilons, generator)


def sample(out: HeadOutput, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """a ~ π(·|s), and log π(a|s). ε is ignored."""
    actions = out.sample(generator)
    return actions, out.log_prob(actions)


def sample_from(out: HeadOutput, drawn: list[Tensor]) -> tuple[Tensor, Tensor]:
    """`sample` for random numbers that are given."""
    actions = out.sample_from(drawn)
    return actions, out.log_prob(actions)


def epsilon_greedy(out: HeadOutput, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """a = argmax Q with probability 1 - ε, uniform with ε; μ(a) = ε/|A| + (1 - ε) [a = argmax Q].

    Where actions have continuous parts: `casa.actions.near_best`.
    """
    if is_continuous(out.sizes):
        return out.near_best_q(epsilons, generator)
    greedy = out.argmax_q()
    explore = torch.rand(out.v.shape, generator=generator, device=greedy.device) < epsilons
    anything, count = out.uniform(generator)
    parts = (1,) * (greedy.ndim - explore.ndim)  # axes of an action with several parts
    actions = torch.where(explore.view(*explore.shape, *parts), anything, greedy)
    is_greedy = (actions == greedy).flatten(explore.ndim).all(-1) if parts else actions == greedy
    return actions, (epsilons / count + (1 - epsilons) * is_greedy).log()


def greedy(out: HeadOutput, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """a = argmax Q, with probability 1 given the network's noise (`net.noise`), which explores. ε is ignored."""
    return out.argmax_q(), torch.zeros_like(out.v)


BEHAVIOURS: tables.Table[Behaviour] = tables.BEHAVIOURS
BEHAVIOURS.add("sample", Behaviour(sample, lambda out: out.mode(), choose=sample_from, takes_epsilon=False), __name__)
BEHAVIOURS.add("epsilon-greedy", Behaviour(epsilon_greedy, lambda out: out.argmax_q(), True), __name__)
BEHAVIOURS.add("greedy", Behaviour(greedy, lambda out: out.argmax_q(), True, takes_epsilon=False), __name__)


def draw_epsilons(
    num_envs: int, base: float, low: float, high: float, rng: np.random.Generator
) -> Tensor:
    """ε_i = base^{u_i} of environment i, u_i uniform in (low, high), stratified: few environments cover the range."""
    if math.isclose(low, high):
        return torch.full((num_envs,), base**low, dtype=torch.float32)
    u = low + (high - low) * (np.arange(num_envs) + rng.random(num_envs)) / num_envs
    return torch.as_tensor(base**u, dtype=torch.float32)
