"""What is true of DR-Trace: its fixed point is V^π, it converges for every clipping, at a known rate."""

from __future__ import annotations

import math

import pytest
import torch

from casa.theory.affine import centred_map, join, pair_map, split, value_map
from casa.theory.dr_printed import ring_problem
from casa.theory.measure import C_BARS, RHO_BARS, distance, problems
from casa.theory.operators import (
    OffPolicy,
    centred,
    centred_value,
    fitted_to_behaviour,
    gradient_step,
    literal,
    rate_bound,
    scaled,
    tied,
    v_trace,
    with_old_baseline,
    with_policy_gradient,
)

ALL = list(problems([0, 1]))
IDS = [f"seed{seed}-rho{problem.rho_bar:g}-c{problem.c_bar:g}" for seed, problem in ALL]
every_problem = pytest.mark.parametrize("problem", [problem for _, problem in ALL], ids=IDS)


def plain_iteration(update, problem, steps=4000):
    v = torch.linspace(-3, 3, problem.mdp.num_states, dtype=torch.float64)
    q = v.unsqueeze(-1).expand_as(problem.pi)
    for _ in range(steps):
        q, v = update(problem, q, v)
    return q, v


def test_the_grid_is_the_one_that_was_asked_for():
    assert set(RHO_BARS) == {0.3, 1.0, 1.05, 1e9}
    assert set(C_BARS) == {0.3, 1.0, 1.05, 1e9}


@pytest.mark.parametrize("rho_bar", RHO_BARS)
@pytest.mark.parametrize("c_bar", [0.3, 1.05, 1e9])
def test_limit_is_the_policys_own_value(rho_bar, c_bar):
    base = ALL[0][1]
    problem = OffPolicy(base.mdp, base.pi, base.mu, rho_bar, c_bar)
    q, v = plain_iteration(centred, problem, steps=1500)
    torch.testing.assert_close(v, problem.mdp.state_values(problem.pi))
    torch.testing.assert_close(q, problem.mdp.action_values(problem.pi))
    if rho_bar <= 1.05:  # the two candidates are far apart, so the test tells them from each other
        assert distance(v, problem.mdp.state_values(problem.pi_tilde)) > 0.5


@every_problem
def test_fixed_points(problem):
    mdp = problem.mdp
    value, tilde = mdp.state_values(problem.pi), mdp.state_values(problem.pi_tilde)
    pair = join(mdp.action_values(problem.pi), value)
    for update in (centred, fitted_to_behaviour, gradient_step(1.0, 10.0)):
        torch.testing.assert_close(pair_map(update, problem).fixed_point(), pair)
    torch.testing.assert_close(value_map(v_trace, problem).fixed_point(), tilde)
    torch.testing.assert_close(tied(problem, mdp.action_values(problem.pi)), mdp.action_values(problem.pi))


@pytest.mark.parametrize("horizon", [1, 3, 80])
def test_the_fixed_point_does_not_depend_on_the_horizon(horizon):
    base = ALL[5][1]
    problem = OffPolicy(base.mdp, base.pi, base.mu, 0.3, 1.05, horizon)
    assert pair_map(centred, problem).radius < 1
    torch.testing.assert_close(
        split(pair_map(centred, problem).fixed_point(), problem)[1], problem.mdp.state_values(problem.pi)
    )


@every_problem
def test_error_matrix_and_rate(problem):
    """V' - V^π = M (V - V^π) with M = I - K diag(α) (I - γ P_π), and M is similar to a nonnegative matrix."""
    mdp, gamma = problem.mdp, problem.mdp.discount
    identity = torch.eye(mdp.num_states, dtype=torch.float64)
    p_pi, p_c = mdp.under(problem.pi), mdp.under(problem.c_weights)
    traces = torch.linalg.inv(identity - gamma * p_c)
    alpha = problem.mass.diag()
    matrix = identity - traces @ alpha @ (identity - gamma * p_pi)
    found = value_map(centred_value, problem)
    torch.testing.assert_close(found.matrix, matrix)

    similar = identity - alpha + gamma * alpha @ (p_pi - p_c) @ traces
    torch.testing.assert_close(torch.linalg.solve(traces, matrix @ traces), similar)
    assert (similar >= -1e-12).all()

    kappa = problem.c_weights.sum(-1)
    bound = float((1 - (1 - gamma) * problem.mass / (1 - gamma * kappa)).max())
    assert rate_bound(problem) == pytest.approx(bound, abs=1e-12)
    assert found.radius <= bound + 1e-9
    assert bound < 1
    # The pair (Q, V) has the same nonzero eigenvalues (nilpotent parts cost digits in the larger matrix).
    assert pair_map(centred, problem).radius == pytest.approx(found.radius, abs=1e-4)


def test_sup_norm_contraction_fails_though_it_converges():
    problem = next(p for _, p in ALL if (p.rho_bar, p.c_bar) == (1.05, 1.05))
    assert centred_map(centred, problem).lipschitz > 1.2
    assert value_map(centred_value, problem).radius > problem.mdp.discount


def test_rate_differs_from_vtrace_unless_nothing_is_clipped():
    for _, problem in ALL:
        difference = abs(value_map(centred_value, problem).radius - value_map(v_trace, problem).radius)
        assert difference < 1e-9 if problem.rho_bar == 1e9 else difference > 1e-5


@every_problem
def test_the_printed_update_diverges(problem):
    assert pair_map(literal, problem).radius > 1.05
    _, v = plain_iteration(literal, problem, steps=400)
    assert not distance(v, problem.mdp.state_values(problem.pi)) < 1e3


def test_without_centring_every_v_is_a_fixed_point():
    problem = ALL[3][1]
    for v in torch.eye(problem.mdp.num_states, dtype=torch.float64):
        q = problem.mdp.backup(v)
        for found, expected in zip(with_old_baseline(problem, q, v), (q, v), strict=True):
            torch.testing.assert_close(found, expected)


def test_vtrace_on_the_ring_has_the_eigenvalue_of_the_fourier_modes():
    """λ(θ) = 1 - α + i α γ (2 m - 1) sin θ / (1 - γ cos θ), m = π̃(0): above 1 at c̄ > ρ̄."""
    problem = ring_problem()
    gamma, count = problem.mdp.discount, problem.mdp.num_states
    alpha, forward = float(problem.mass[0]), float(problem.pi_tilde[0, 0])
    angles = [2 * math.pi * k / count for k in range(count)]
    radii = [
        abs(complex(1 - alpha, alpha * gamma * (2 * forward - 1) * math.sin(x) / (1 - gamma * math.cos(x))))
        for x in angles
    ]
    assert value_map(v_trace, problem).radius == pytest.approx(max(radii))
    assert max(radii) > 1.2
    assert value_map(centred_value, problem).radius == pytest.approx(1 - alpha)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0])
def test_scaled_advantage_gives_the_value_of_a_signed_mixture(factor):
    problem = ALL[4][1]
    mixture = (1 - factor) * problem.pi_tilde + factor * problem.pi
    found = split(pair_map(scaled(factor), problem).fixed_point(), problem)[1]
    torch.testing.assert_close(found, problem.mdp.state_values(mixture))


def test_policy_gradient_moves_v_away_from_both_unless_on_policy():
    problem = next(p for _, p in ALL if (p.rho_bar, p.c_bar) == (1.05, 1.05))
    value = problem.mdp.state_values(problem.pi)
    on_policy = OffPolicy(problem.mdp, problem.pi, problem.pi, 1.05, 1.05)
    update = with_policy_gradient(1.0)
    torch.testing.assert_close(split(pair_map(update, on_policy).fixed_point(), problem)[1], value)
    mixed = OffPolicy(problem.mdp, problem.pi, 0.7 * problem.pi + 0.3 * problem.mu, 1.05, 1.05)
    limit = split(pair_map(update, mixed).fixed_point(), problem)[1]
    assert distance(limit, value) > 0.05
    assert distance(limit, problem.mdp.state_values(mixed.pi_tilde)) > distance(limit, value)


@every_problem
def test_small_steps_are_stable(problem):
    assert pair_map(gradient_step(1.0, 10.0), problem).abscissa < 0
