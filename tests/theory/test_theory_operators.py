"""The exact operators against the paper's literal sums, and the updates against the library's head and losses."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from casa.heads import casa_head
from casa.losses import policy_loss, q_loss
from casa.theory.mdp import random_mdp, random_policy, seeded
from casa.theory.operators import (
    OffPolicy,
    centred,
    centred_value,
    dr_action,
    dr_value,
    fitted_to_behaviour,
    gradient_step,
    retrace,
    scaled,
    v_trace,
    with_policy_gradient,
)


def make(seed=0, rho_bar=1.05, c_bar=0.8, horizon=None, states=3, actions=2):
    generator = seeded(seed, purpose=110)
    mdp = random_mdp(generator, num_states=states, num_actions=actions)
    pi, mu = random_policy(generator, states, actions), random_policy(generator, states, actions)
    q = torch.randn(states, actions, generator=generator, dtype=torch.float64)
    v = torch.randn(states, generator=generator, dtype=torch.float64)
    return OffPolicy(mdp, pi, mu, rho_bar, c_bar, horizon), q, v


def literal_sums(problem, q, v, length):
    """The four sums of the paper's comparison table, one trajectory at a time, with plain Python numbers."""
    mdp, gamma = problem.mdp, problem.mdp.discount
    states, actions = problem.pi.shape
    names = ("v_dr", "q_dr", "v_trace", "retrace")
    totals = {name: torch.zeros(states, actions, dtype=torch.float64) for name in names}
    for path in product(range(states), *[range(actions), range(states)] * length):
        s, a = path[0::2], path[1::2]
        weight = 1.0  # Pr(path | s_0, a_0)
        for k in range(length):
            weight *= float(mdp.transitions[s[k], a[k], s[k + 1]])
            weight *= float(problem.mu[s[k], a[k]]) if k else 1.0
        ratios = [float(problem.pi[x, y] / problem.mu[x, y]) for x, y in zip(s, a, strict=False)]
        rho = [min(x, problem.rho_bar) for x in ratios]
        c = [min(x, problem.c_bar) for x in ratios]
        sums = dict.fromkeys(names, 0.0)
        sums["v_dr"] = sums["v_trace"] = float(v[s[0]])
        sums["q_dr"] = sums["retrace"] = float(q[s[0], a[0]])
        for k in range(length):
            step = float(mdp.rewards[s[k], a[k]]) + gamma * float(v[s[k + 1]])
            doubly, single = step - float(q[s[k], a[k]]), step - float(v[s[k]])
            mean = float((problem.pi[s[k + 1]] * q[s[k + 1]]).sum())
            action = float(mdp.rewards[s[k], a[k]]) + gamma * mean - float(q[s[k], a[k]])
            all_c = torch.tensor(c[:k]).double().prod()
            later_c = torch.tensor(c[1:k]).double().prod()
            sums["v_dr"] += gamma**k * float(all_c) * rho[k] * doubly
            sums["q_dr"] += gamma**k * float(later_c) * (1.0 if k == 0 else rho[k]) * doubly
            sums["v_trace"] += gamma**k * float(all_c) * rho[k] * single
            sums["retrace"] += gamma**k * float(torch.tensor(c[1 : k + 1]).double().prod()) * action
        for name in names:
            totals[name][s[0], a[0]] += weight * sums[name]
    return totals


def test_operators_are_the_papers_sums():
    problem, q, v = make(horizon=3)
    sums = literal_sums(problem, q, v, 3)
    torch.testing.assert_close(dr_value(problem, q, v), (problem.mu * sums["v_dr"]).sum(-1))
    torch.testing.assert_close(dr_action(problem, q, v), sums["q_dr"])
    torch.testing.assert_close(v_trace(problem, v), (problem.mu * sums["v_trace"]).sum(-1))
    torch.testing.assert_close(retrace(problem, q), sums["retrace"])


def test_a_long_horizon_is_the_infinite_sum():
    (long, q, v), (endless, _, _) = make(horizon=400), make()
    torch.testing.assert_close(dr_value(long, q, v), dr_value(endless, q, v))
    torch.testing.assert_close(dr_action(long, q, v), dr_action(endless, q, v))
    torch.testing.assert_close(retrace(long, q), retrace(endless, q))


def test_dr_trace_with_q_equal_to_v_is_v_trace():
    problem, _, v = make()
    torch.testing.assert_close(dr_value(problem, v.unsqueeze(-1).expand_as(problem.pi), v), v_trace(problem, v))
    torch.testing.assert_close(scaled(0.0)(problem, v.unsqueeze(-1).expand_as(problem.pi), v)[1], v_trace(problem, v))


def test_centred_stays_centred_and_reduces_to_one_map_of_v():
    problem, q, v = make()
    for _ in range(3):
        previous = v
        q, v = centred(problem, q, v)
        torch.testing.assert_close(problem.mean(q), v)
    torch.testing.assert_close(v, centred_value(problem, previous))


def test_fit_to_behaviour_is_the_least_squares_solution():
    problem, q, v = make(states=2, actions=3)
    target = dr_action(problem, q, v) - v.unsqueeze(-1)
    found = fitted_to_behaviour(problem, q, v)[0] - dr_value(problem, q, v).unsqueeze(-1)
    for s in range(2):
        centring = torch.eye(3, dtype=torch.float64) - problem.pi[s].expand(3, 3)  # A -> A - π·A
        root = problem.mu[s].sqrt().unsqueeze(-1)
        solution = torch.linalg.pinv(root * centring) @ (root.squeeze(-1) * target[s])
        torch.testing.assert_close(found[s], centring @ solution)


@pytest.mark.parametrize("ratio", [0.0, 1.0, 0.4])
def test_joint_fit_and_gradient_step_follow_the_librarys_losses(ratio):
    """Autograd through `casa_head`, `q_loss` and `policy_loss`: its step and its stationary point."""
    tau = 0.7
    problem, q, v = make(states=2, actions=3, seed=1)
    advantage = (q - v.unsqueeze(-1)).requires_grad_()
    pi = (advantage.detach() / tau).softmax(-1)
    problem = OffPolicy(problem.mdp, pi, problem.mu, 1.05, 0.8)
    q = (advantage - problem.mean(advantage).unsqueeze(-1) + v.unsqueeze(-1)).detach()
    target = dr_action(problem, q, v)

    def ascent(of):
        head = casa_head(of, v, tau)
        rhos = (problem.pi / problem.mu).clamp(max=1.05)
        loss = q_loss(head.q, target, weights=problem.mu).value
        loss = loss + ratio * policy_loss(head.log_pi, target - v.unsqueeze(-1), tau, rhos, weights=problem.mu).value
        return -torch.autograd.grad(loss, of)[0] * target.numel()

    if ratio == 0.0:
        step = gradient_step(0.0, 1.0)(problem, q, v)[0]
        moved = q - v.unsqueeze(-1) + ascent(advantage)
        torch.testing.assert_close(step, moved - problem.mean(moved).unsqueeze(-1) + v.unsqueeze(-1))

    # At the joint fit, with π held fixed, the pull on A vanishes: μ (T - V - Ā) + ratio μρ (T - V) ∝ π.
    fit = with_policy_gradient(ratio)(problem, q, v)[0] - dr_value(problem, q, v).unsqueeze(-1)
    gap = target - v.unsqueeze(-1)
    pull = problem.mu * (gap - fit) + ratio * problem.rho_weights * gap
    torch.testing.assert_close(pull, problem.pi * pull.sum(-1, keepdim=True))
    torch.testing.assert_close(problem.mean(fit), torch.zeros(2, dtype=torch.float64))
    # And at the current A, the same expression is what autograd follows.
    current = problem.mu * (target - q) + ratio * problem.rho_weights * gap
    torch.testing.assert_close(ascent(advantage), current - problem.pi * current.sum(-1, keepdim=True))
