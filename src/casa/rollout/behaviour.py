"""How a policy acts: sampled from π, greedy, or ε-greedy on Q with one ε per environment."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from casa.heads import HeadOutput
from casa.losses import taken


def sample(out: HeadOutput, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """a ~ π(·|s), and log π(a|s): argmax_a π(a)/e_a with e_a ~ Exp(1) is a draw from π. ε is not used."""
    noise = torch.empty_like(out.log_pi).exponential_(generator=generator)
    actions = (out.log_pi - noise.log()).argmax(-1)
    return actions, taken(out.log_pi, actions)


def epsilon_greedy(out: HeadOutput, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """a = argmax Q with probability 1 - ε, uniform with ε; μ(a) = ε/|A| + (1 - ε) [a = argmax Q]."""
    assert out.q is not None, "epsilon-greedy needs a head with Q"
    greedy = out.q.argmax(-1)
    count = out.q.shape[-1]
    shape, device = greedy.shape, greedy.device
    explore = torch.rand(shape, generator=generator, device=device) < epsilons
    anything = torch.randint(count, shape, generator=generator, device=device)
    actions = torch.where(explore, anything, greedy)
    return actions, (epsilons / count + (1 - epsilons) * (actions == greedy)).log()


def greedy(out: HeadOutput) -> Tensor:
    """argmax_a π(a|s), which is argmax_a Q(s, a) for every head in which π is a softmax of A or Q's advantage."""
    return out.log_pi.argmax(-1)


BEHAVIOURS = {"sample": sample, "epsilon-greedy": epsilon_greedy}


def draw_epsilons(
    num_envs: int, base: float, low: float, high: float, rng: np.random.Generator
) -> Tensor:
    """ε_i = base^{u_i}, u_i uniform in (low, high), one per environment; stratified, so that few cover the range."""
    if math.isclose(low, high):
        return torch.full((num_envs,), base**low, dtype=torch.float32)
    u = low + (high - low) * (np.arange(num_envs) + rng.random(num_envs)) / num_envs
    return torch.as_tensor(base**u, dtype=torch.float32)
