from __future__ import annotations

import math

import pytest
import torch
from tests.support.target_cases import Case, episodes_case, literal_vtrace, random_case
from torch import Tensor

from casa.targets import clipped_ratios, one_step, vtrace, vtrace_advantage

ARGUMENTS = ("rewards", "discounts", "values", "next_values", "log_rhos", "ends")


def run(case: Case, rho_bar: float = 1.0, c_bar: float = 1.0) -> Tensor:
    return vtrace(**case.of(*ARGUMENTS), rho_bar=rho_bar, c_bar=c_bar)


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (1.05, 0.7), (0.3, 1.0), (math.inf, 2.0)])
def test_equals_the_literal_sum(rho_bar: float, c_bar: float) -> None:
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        expected = literal_vtrace(case, rho_bar, c_bar)
        torch.testing.assert_close(run(case, rho_bar, c_bar), expected, rtol=1e-12, atol=1e-12)


def test_both_bounds_default_to_one() -> None:
    case = random_case(4, ratio_scale=3.0)
    assert torch.equal(vtrace(**case.of(*ARGUMENTS)), run(case, 1.0, 1.0))


def test_off_policy_actions_that_pi_never_takes_leave_v_alone() -> None:
    case = random_case(5)
    case.log_rhos.fill_(-math.inf)
    torch.testing.assert_close(run(case), case.values, rtol=0, atol=0)


@pytest.mark.parametrize("rho_bar", [1.0, 1.5])
def test_advantage_element_by_element(rho_bar: float) -> None:
    case = random_case(6)
    v_targets = run(case)
    advantage = vtrace_advantage(**case.of(*ARGUMENTS), v_targets=v_targets, rho_bar=rho_bar)
    steps, batch = case.rewards.shape
    for t in range(steps):
        for b in range(batch):
            cut = case.ends[t, b] or t == steps - 1
            following = case.next_values[t, b] if cut else v_targets[t + 1, b]
            ratio = min(rho_bar, math.exp(case.log_rhos[t, b]))
            expected = ratio * (case.rewards[t, b] + case.discounts[t, b] * following - case.values[t, b])
            torch.testing.assert_close(advantage[t, b], expected)
    returns = one_step(**case.of("rewards", "discounts", "next_values", "ends"), v_targets=v_targets)
    torch.testing.assert_close(
        advantage, clipped_ratios(case.log_rhos, rho_bar) * (returns - case.values), rtol=0, atol=0
    )


@pytest.mark.parametrize("bar", [0.3, 1.0, 1.05, 1e9])
def test_a_clipped_ratio_never_exceeds_its_bound(bar: float) -> None:
    log_rhos = torch.tensor([-math.inf, -1e30, -200.0, -50.0, 0.0, 50.0, 200.0, 1e30, math.inf])
    ratios = clipped_ratios(log_rhos, bar)
    assert ratios.isfinite().all()
    assert (ratios <= torch.tensor(bar)).all()
    torch.testing.assert_close(ratios[-3:], torch.full((3,), bar), rtol=3e-6, atol=0)
    torch.testing.assert_close(ratios[3:5], torch.tensor([math.exp(-50.0), min(1.0, bar)]))


def test_clipped_ratios_are_detached_and_wide() -> None:
    log_rhos = torch.linspace(-2, 2, 9, dtype=torch.bfloat16, requires_grad=True)
    ratios = clipped_ratios(log_rhos, 1.05)
    assert not ratios.requires_grad
    torch.testing.assert_close(ratios, log_rhos.detach().float().exp().clamp(max=1.05))


@pytest.mark.parametrize("bar", [0.0, -1.0, math.nan])
def test_a_bound_that_is_not_positive_is_refused(bar: float) -> None:
    with pytest.raises(ValueError, match="positive bound"):
        clipped_ratios(torch.zeros(2), bar)
