"""Finite MDPs: exact values against plain iteration and against the policy gradient theorem."""

from __future__ import annotations

import pytest
import torch

from casa.theory.affine import Affine, affine
from casa.theory.mdp import clipped_policy, random_mdp, random_policy, ring, seeded


@pytest.fixture(params=[0, 1])
def problem(request):
    generator = seeded(request.param, purpose=100)
    mdp = random_mdp(generator, num_states=5, num_actions=3, termination=0.05 * request.param)
    return mdp, random_policy(generator, 5, 3)


def test_values_are_the_limit_of_bellman_backups(problem):
    mdp, pi = problem
    v = torch.zeros(5, dtype=torch.float64)
    for _ in range(400):
        v = (pi * mdp.backup(v)).sum(-1)
    torch.testing.assert_close(mdp.state_values(pi), v)
    torch.testing.assert_close((pi * mdp.action_values(pi)).sum(-1), v)


def test_visits_and_objective_agree(problem):
    mdp, pi = problem
    rewards = (pi * mdp.rewards).sum(-1)
    torch.testing.assert_close(mdp.visits(pi) @ rewards, mdp.objective(pi))


def test_policy_gradient_theorem(problem):
    mdp, pi = problem
    logits = pi.log().requires_grad_()
    (exact,) = torch.autograd.grad(mdp.objective(logits.softmax(-1)), logits)
    advantage = mdp.action_values(pi) - mdp.state_values(pi).unsqueeze(-1)
    torch.testing.assert_close(exact, mdp.visits(pi).unsqueeze(-1) * pi * advantage)


def test_clipped_policy():
    pi = torch.tensor([[0.8, 0.2]], dtype=torch.float64)
    mu = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(clipped_policy(pi, mu, 1.0), torch.tensor([[2 / 3, 1 / 3]], dtype=torch.float64))
    torch.testing.assert_close(clipped_policy(pi, mu, 1e9), pi)


def test_ring_moves_one_step_either_way():
    mdp = ring(4, 0.9)
    assert mdp.transitions[3, 0].tolist() == [1, 0, 0, 0]
    assert mdp.transitions[0, 1].tolist() == [0, 0, 0, 1]


def test_affine_recovers_the_map_and_its_iterates():
    generator = seeded(0, purpose=101)
    matrix = 0.3 * torch.randn(4, 4, generator=generator, dtype=torch.float64)
    offset = torch.randn(4, generator=generator, dtype=torch.float64)
    found = affine(lambda x: matrix @ x + offset, 4)
    torch.testing.assert_close(found.matrix, matrix)
    x = start = torch.ones(4, dtype=torch.float64)
    for _ in range(8):
        x = matrix @ x + offset
    torch.testing.assert_close(found.iterated(start, 3), x)
    torch.testing.assert_close(matrix @ found.fixed_point() + offset, found.fixed_point())


def test_rates_of_a_known_matrix():
    rotation = Affine(torch.tensor([[0.0, -0.5], [0.5, 0.0]], dtype=torch.float64), torch.zeros(2).double())
    assert rotation.radius == pytest.approx(0.5)
    assert rotation.abscissa == pytest.approx(-1.0)
    assert rotation.lipschitz == pytest.approx(0.5)
    diverging = Affine(2 * torch.eye(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    assert not diverging.iterated(torch.ones(1, dtype=torch.float64), 14).isfinite().all()
