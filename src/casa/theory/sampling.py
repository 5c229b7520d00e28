"""The library's sampled targets, averaged exactly: every trajectory of a small MDP, weighted by its probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from casa import targets
from casa.theory.check import Check, Statement, identity
from casa.theory.mdp import random_mdp, random_policy, seeded
from casa.theory.operators import OffPolicy, dr_action, dr_value, retrace, v_trace


@dataclass(frozen=True)
class Trajectories:
    """All trajectories of T steps, time-major [T, B], with their probabilities [B] given s₀ and given (s₀, a₀).

    `next_states` is -1 after a termination, and a new episode follows from state 0.
    """

    states: Tensor
    actions: Tensor
    next_states: Tensor
    given_start: Tensor
    given_action: Tensor

    @property
    def ends(self) -> Tensor:
        """Terminated: [T, B]."""
        return self.next_states < 0


def enumerate_trajectories(problem: OffPolicy, length: int) -> Trajectories:
    """Every (s₀, a₀, s₁, …) of `length` steps under μ, with Pr(· | s₀) and Pr(· | s₀, a₀)."""
    count, actions = problem.pi.shape
    outcomes = list(product(range(actions), [*range(count), -1]))
    paths = list(product(range(count), *[outcomes] * length))
    starts = torch.tensor([path[0] for path in paths])
    steps = torch.tensor([path[1:] for path in paths])  # [B, T, 2]
    taken, following = steps[..., 0].mT.contiguous(), steps[..., 1].mT.contiguous()
    states = torch.cat([starts.unsqueeze(0), following[:-1].clamp(min=0)])
    transitions = problem.mdp.transitions
    terminal = 1.0 - transitions.sum(-1, keepdim=True)
    outcome_probabilities = torch.cat([transitions, terminal], dim=-1)  # index -1 is termination
    moves = outcome_probabilities[states, taken, following]
    choices = problem.mu[states, taken]
    return Trajectories(states, taken, following, (moves * choices).prod(0), moves.prod(0) * choices[1:].prod(0))


def enumeration_checks(seeds: Sequence[int], length: int = 3) -> list[Check]:
    """E_μ of `casa.targets`' dr_trace, vtrace and retrace against the operators, with the same horizon."""
    errors: dict[str, list[float]] = {"dr_trace": [], "vtrace": [], "retrace": []}
    for seed in seeds:
        generator = seeded(seed, purpose=8)
        mdp = random_mdp(generator, num_states=3, num_actions=2, termination=0.15)
        pi, mu = random_policy(generator, 3, 2), random_policy(generator, 3, 2)
        q = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        v = torch.randn(3, generator=generator, dtype=torch.float64)
        problem = OffPolicy(mdp, pi, mu, rho_bar=1.05, c_bar=0.9, horizon=length)
        paths = enumerate_trajectories(problem, length)
        for name, error in _compare(problem, paths, q, v).items():
            errors[name].append(error)
    return [
        identity(
            Statement(
                "targets-are-operators",
                "The library's targets, averaged over all trajectories of μ, are the operators studied here",
                "E_μ[dr_trace] = (S, T), E_μ[vtrace], E_μ[retrace]",
                "control",
            ),
            f"largest difference, all trajectories of {length} steps, with terminations",
            [error for found in errors.values() for error in found],
            details=dict(errors),
        )
    ]


def _compare(problem: OffPolicy, paths: Trajectories, q: Tensor, v: Tensor) -> dict[str, float]:
    ends, mdp = paths.ends, problem.mdp
    rewards = mdp.rewards[paths.states, paths.actions]
    discounts = mdp.discount * (~ends).double()
    log_rhos = (problem.pi / problem.mu).log()[paths.states, paths.actions]
    q_taken = q[paths.states, paths.actions]
    # After a termination the index is -1 and reads an arbitrary value, which the discount of 0 must mask.
    values, next_values = v[paths.states], v[paths.next_states]
    rho_bar, c_bar = problem.rho_bar, problem.c_bar
    doubly = targets.dr_trace(
        rewards, discounts, values, next_values, q_taken, log_rhos, ends, rho_bar=rho_bar, c_bar=c_bar
    )
    single = targets.vtrace(rewards, discounts, values, next_values, log_rhos, ends, rho_bar=rho_bar, c_bar=c_bar)
    means = problem.mean(q)[paths.next_states]
    actions = targets.retrace(rewards, discounts, q_taken, means, log_rhos, ends, c_bar=c_bar)

    def by_state(sampled: Tensor) -> Tensor:
        zeros = torch.zeros_like(v)
        return zeros.index_add(0, paths.states[0], paths.given_start * sampled[0])

    def by_action(sampled: Tensor) -> Tensor:
        index = paths.states[0] * q.shape[1] + paths.actions[0]
        return torch.zeros_like(q).flatten().index_add(0, index, paths.given_action * sampled[0]).view_as(q)

    def difference(x: Tensor, y: Tensor) -> float:
        return float((x - y).abs().max())

    return {
        "dr_trace": max(
            difference(by_state(doubly.v), dr_value(problem, q, v)),
            difference(by_action(doubly.q), dr_action(problem, q, v)),
        ),
        "vtrace": difference(by_state(single), v_trace(problem, v)),
        "retrace": difference(by_action(actions), retrace(problem, q)),
    }
