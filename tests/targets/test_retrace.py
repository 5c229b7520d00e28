from __future__ import annotations

import math

import pytest
import torch
from tests.support.target_cases import Case, episodes_case, literal_retrace, random_case
from torch import Tensor

from casa.targets import retrace

ARGUMENTS = ("rewards", "discounts", "q_taken", "next_values", "log_rhos", "ends")


def run(case: Case, c_bar: float = 1.0) -> Tensor:
    return retrace(**case.of(*ARGUMENTS), c_bar=c_bar)


@pytest.mark.parametrize("c_bar", [0.4, 1.0, 1.05, math.inf])
def test_equals_the_literal_sum(c_bar: float) -> None:
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        torch.testing.assert_close(run(case, c_bar), literal_retrace(case, c_bar), rtol=1e-12, atol=1e-12)


def test_the_bound_defaults_to_one() -> None:
    case = random_case(4, ratio_scale=3.0)
    assert torch.equal(retrace(**case.of(*ARGUMENTS)), run(case, 1.0))


def test_the_ratio_of_the_action_itself_does_not_count() -> None:
    case = random_case(5, end_rate=0.0)
    before = run(case)
    case.log_rhos[0] += 1.0
    assert torch.equal(run(case), before)
    case.log_rhos[1] = -9.0
    assert (run(case)[0] != before[0]).all()


def test_without_traces_it_is_the_expected_one_step_return() -> None:
    case = random_case(6)
    case.log_rhos.fill_(-math.inf)
    torch.testing.assert_close(run(case), case.rewards + case.discounts * case.next_values)


def test_the_true_q_is_a_fixed_point() -> None:
    # A chain with one action: Q_t = r_t + γ Q_{t+1} and E_π Q = Q, so every δ is 0 whatever the ratios are.
    case = random_case(7, end_rate=0.0)
    q = case.next_values[-1]
    for t in range(case.rewards.shape[0] - 1, -1, -1):
        case.next_values[t] = q
        q = case.rewards[t] + case.discounts[t] * q
        case.q_taken[t] = q
    torch.testing.assert_close(run(case), case.q_taken)
