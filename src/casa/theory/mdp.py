"""Finite MDPs, their policies and their exact values, in float64 and without sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FiniteMDP:
    """(P [S, A, S], r [S, A], γ, p₀ [S]); 1 minus the sum of a row of P is the probability of termination."""

    transitions: Tensor
    rewards: Tensor
    discount: float
    start: Tensor

    @property
    def num_states(self) -> int:
        """|S|."""
        return self.rewards.shape[0]

    @property
    def num_actions(self) -> int:
        """|A|."""
        return self.rewards.shape[1]

    def backup(self, values: Tensor) -> Tensor:
        """r(s, a) + γ Σ_s' P(s'|s, a) V(s'): [S] -> [S, A]."""
        return self.rewards + self.discount * self.transitions @ values

    def under(self, weights: Tensor) -> Tensor:
        """P_w(s, s') = Σ_a w(s, a) P(s'|s, a): [S, A] -> [S, S]; any weights, not only policies."""
        return torch.einsum("sa,sat->st", weights, self.transitions)

    def state_values(self, policy: Tensor) -> Tensor:
        """V^π = (I - γ P_π)⁻¹ Σ_a π r, differentiable in π; `policy` [S, A] may have signed weights."""
        return torch.linalg.solve(
            _eye(self.num_states) - self.discount * self.under(policy), (policy * self.rewards).sum(-1)
        )

    def action_values(self, policy: Tensor) -> Tensor:
        """Q^π = r + γ P V^π: [S, A]."""
        return self.backup(self.state_values(policy))

    def visits(self, policy: Tensor) -> Tensor:
        """d^π(s) = Σ_t γ^t Pr(s_t = s) from p₀ under π: [S], not normalised."""
        transposed = (_eye(self.num_states) - self.discount * self.under(policy)).mT
        return torch.linalg.solve(transposed, self.start)

    def objective(self, policy: Tensor) -> Tensor:
        """J = Σ_s p₀(s) V^π(s), differentiable in π."""
        return self.start @ self.state_values(policy)


def clipped_policy(pi: Tensor, mu: Tensor, rho_bar: float) -> Tensor:
    """π̃(a|s) = min(ρ̄ μ, π) / Σ_b min(ρ̄ μ, π): the policy whose value V-Trace estimates."""
    weights = torch.minimum(pi, rho_bar * mu)
    return weights / weights.sum(-1, keepdim=True)


def random_mdp(
    generator: torch.Generator,
    num_states: int = 6,
    num_actions: int = 3,
    discount: float = 0.9,
    termination: float = 0.0,
) -> FiniteMDP:
    """P(·|s, a) random and sparse, r ~ N(0, 1), p₀ random; every step terminates with probability `termination`."""
    shape = (num_states, num_actions, num_states)
    transitions = (3.0 * _normal(generator, *shape)).softmax(-1) * (1.0 - termination)
    rewards = _normal(generator, num_states, num_actions)
    return FiniteMDP(transitions, rewards, discount, _normal(generator, num_states).softmax(-1))


def random_policy(generator: torch.Generator, num_states: int, num_actions: int, floor: float = 0.1) -> Tensor:
    """π = (1 - f) softmax(2 z) + f / |A| with z ~ N(0, 1): [S, A]; the floor f bounds every π/μ."""
    policy = (2.0 * _normal(generator, num_states, num_actions)).softmax(-1)
    return (1.0 - floor) * policy + floor / num_actions


def ring(num_states: int, discount: float) -> FiniteMDP:
    """s -> s + 1 (action 0) or s - 1 (action 1), modulo |S|, with reward cos(2π s/|S|).

    All operators on it are circulant, so their eigenvalues are known in closed form.
    """
    states = torch.arange(num_states)
    transitions = torch.zeros(num_states, 2, num_states, dtype=torch.float64)
    transitions[states, 0, (states + 1) % num_states] = 1.0
    transitions[states, 1, (states - 1) % num_states] = 1.0
    rewards = torch.cos(2 * torch.pi * states.double() / num_states)
    start = torch.full((num_states,), 1.0 / num_states, dtype=torch.float64)
    return FiniteMDP(transitions, rewards.unsqueeze(-1).expand(-1, 2).clone(), discount, start)


def seeded(seed: int, purpose: int = 0) -> torch.Generator:
    """A separate generator for each (seed, purpose), so that the draws of one check do not affect another."""
    return torch.Generator().manual_seed(1_000 * purpose + seed)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)
