from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.target_cases import Case, episodes_case, literal_n_step, random_case
from torch import Tensor

from casa.targets import double_q, gae, h, h_inverse, n_step_q, retrace


def run(case: Case, n: int, rescale: bool) -> Tensor:
    return n_step_q(**case.of("rewards", "discounts", "next_values", "ends"), n=n, rescale=rescale)


def scalar_h(x: float, epsilon: float = 1e-3) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + epsilon * x


def scalar_h_inverse(y: float, epsilon: float = 1e-3) -> float:
    root = (math.sqrt(1 + 4 * epsilon * (abs(y) + 1 + epsilon)) - 1) / (2 * epsilon)
    return math.copysign(root**2 - 1, y)


@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_equals_the_literal_sum(n: int) -> None:
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        plain = literal_n_step(case, n, lambda x: x, lambda x: x)
        torch.testing.assert_close(run(case, n, rescale=False), plain, rtol=1e-12, atol=1e-12)
        scaled = literal_n_step(case, n, scalar_h, scalar_h_inverse)
        torch.testing.assert_close(run(case, n, rescale=True), scaled, rtol=1e-9, atol=1e-9)


def test_rescaling_is_the_default() -> None:
    case = random_case(4)
    target = n_step_q(**case.of("rewards", "discounts", "next_values", "ends"), n=5)
    assert torch.equal(target, run(case, 5, rescale=True))


def test_reductions() -> None:
    case = random_case(5)
    one = run(case, 1, rescale=False)
    torch.testing.assert_close(one, case.rewards + case.discounts * case.next_values)
    off = case.log_rhos.clone().fill_(-math.inf)
    torch.testing.assert_close(
        one, retrace(case.rewards, case.discounts, case.q_taken, case.next_values, off, case.ends)
    )
    whole = run(case, case.rewards.shape[0], rescale=False)
    returns = gae(**case.of("rewards", "discounts", "values", "next_values", "ends"), lam=1.0).v
    torch.testing.assert_close(whole, returns)


def test_n_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="n = 0"):
        run(random_case(6), 0, rescale=True)


def test_double_q_takes_the_targets_value_of_the_online_choice() -> None:
    online = torch.tensor([[[1.0, 3.0, 2.0]], [[9.0, 0.0, 1.0]]], requires_grad=True)
    target = torch.tensor([[[10.0, 20.0, 30.0]], [[5.0, 6.0, 7.0]]], requires_grad=True)
    chosen = double_q(online, target)
    assert chosen.tolist() == [[20.0], [5.0]]
    assert not chosen.requires_grad
    with pytest.raises(ValueError, match="q_target"):
        double_q(online, target[..., :2])


SIZES = [0.0, 1e-30, 1e-12, 1e-6, 1e-3, 0.5, 1.0, 7.0, 1e2, 1e4, 1e6]
POINTS = torch.tensor([sign * x for x in SIZES for sign in (1.0, -1.0)], dtype=torch.float64)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_h_and_its_inverse_equal_the_papers_formulas(epsilon: float) -> None:
    formula = POINTS.sign() * ((POINTS.abs() + 1).sqrt() - 1) + epsilon * POINTS
    torch.testing.assert_close(h(POINTS, epsilon), formula, rtol=1e-12, atol=1e-15)
    expected = torch.tensor([scalar_h_inverse(y, epsilon) for y in POINTS.tolist()], dtype=torch.float64)
    torch.testing.assert_close(h_inverse(POINTS, epsilon), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0])
def test_round_trip_keeps_fp32_digits(epsilon: float) -> None:
    # Relative, so that the digits near 0 count as much as those at 1e6.
    points = POINTS.float()
    tolerance = {"rtol": 2e-6, "atol": 0.0}
    torch.testing.assert_close(h_inverse(h(points, epsilon), epsilon), points, **tolerance)
    torch.testing.assert_close(h(h_inverse(points, epsilon), epsilon), points, **tolerance)
    torch.testing.assert_close(h(points, epsilon), h(POINTS, epsilon).float(), **tolerance)
    torch.testing.assert_close(h_inverse(points, epsilon), h_inverse(POINTS, epsilon).float(), **tolerance)


@settings(deadline=None)
@given(st.floats(-1e6, 1e6, width=32))
def test_h_is_odd_increasing_and_inverted_anywhere(x: float) -> None:
    point = torch.tensor(x)
    torch.testing.assert_close(h_inverse(h(point)), point, rtol=2e-6, atol=1e-37)
    assert torch.equal(h(-point), -h(point))
    assert h(point + 1.0) > h(point)


def test_h_is_differentiable_at_zero() -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(h(x), x)
    (inverse_slope,) = torch.autograd.grad(h_inverse(x), x)
    torch.testing.assert_close(slope, torch.tensor([0.501], dtype=torch.float64))
    torch.testing.assert_close(inverse_slope * slope, torch.ones(1, dtype=torch.float64))
