from __future__ import annotations

import inspect
import math

import pytest
import torch
from tests.support.target_cases import Case, episodes_case, literal_dr_trace, random_case

from casa.targets import Targets, dr_trace, gae, retrace, vtrace

ARGUMENTS = ("rewards", "discounts", "values", "next_values", "q_taken", "log_rhos", "ends")


def run(case: Case, rho_bar: float = 1.05, c_bar: float = 1.05) -> Targets:
    return dr_trace(**case.of(*ARGUMENTS), rho_bar=rho_bar, c_bar=c_bar)


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.05, 1.05), (1.0, 0.5), (0.3, 1.05), (math.inf, 2.0)])
def test_equals_the_literal_sums(rho_bar: float, c_bar: float) -> None:
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        expected = literal_dr_trace(case, rho_bar, c_bar)
        v, q = run(case, rho_bar, c_bar)
        torch.testing.assert_close(v, expected.v, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(q, expected.q, rtol=1e-12, atol=1e-12)


def test_q_is_one_bellman_step_from_v() -> None:
    case = random_case(4)
    v, q = run(case)
    inside = ~case.ends[:-1]
    ahead = (case.rewards + case.discounts * torch.cat([v[1:], v[:1]]))[:-1]
    torch.testing.assert_close(q[:-1][inside], ahead[inside])
    cut = case.ends.clone()
    cut[-1] = True
    torch.testing.assert_close(q[cut], (case.rewards + case.discounts * case.next_values)[cut])


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (1.05, 1.05), (0.3, 2.0)])
def test_equals_vtrace_where_q_is_v(bounds: tuple[float, float]) -> None:
    case = random_case(5)
    case.q_taken = case.values.clone()
    expected = vtrace(
        **case.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends"),
        rho_bar=bounds[0],
        c_bar=bounds[1],
    )
    torch.testing.assert_close(run(case, *bounds).v, expected, rtol=0, atol=0)


def test_on_policy_with_q_equal_to_v_it_is_the_discounted_return() -> None:
    case = random_case(6)
    case.q_taken = case.values.clone()
    case.log_rhos.zero_()
    returns = gae(**case.of("rewards", "discounts", "values", "next_values", "ends"), lam=1.0).v
    v, q = run(case)
    torch.testing.assert_close(v, returns)
    torch.testing.assert_close(q, returns)


def test_one_step_before_a_cut_it_agrees_with_retrace() -> None:
    case = random_case(7)
    _, q = run(case)
    other = retrace(**case.of("rewards", "discounts", "q_taken", "next_values", "log_rhos", "ends"))
    cut = case.ends.clone()
    cut[-1] = True
    torch.testing.assert_close(q[cut], other[cut])
    assert not torch.allclose(q, other)


def test_the_bounds_default_to_the_papers() -> None:
    defaults = inspect.signature(dr_trace).parameters
    assert (defaults["rho_bar"].default, defaults["c_bar"].default) == (1.05, 1.05)
    case = random_case(8, ratio_scale=3.0)
    assert torch.equal(dr_trace(**case.of(*ARGUMENTS)).v, run(case).v)
