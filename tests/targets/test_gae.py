from __future__ import annotations

import pytest
import torch
from tests.support.target_cases import GAMMA, Case, episodes_case, literal_gae, random_case

from casa.targets import Targets, gae, vtrace


def run(case: Case, lam: float) -> Targets:
    return gae(**case.of("rewards", "discounts", "values", "next_values", "ends"), lam=lam)


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_equals_the_literal_sum(lam: float) -> None:
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        v, q = run(case, lam)
        torch.testing.assert_close(v, literal_gae(case, lam), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(q, v, rtol=0, atol=0)


def test_a_sequence_worked_by_hand() -> None:
    # Two steps, a truncation, then one step of another episode; λ = 1/2, γ = 1/2, V = 1 everywhere but the
    # truncated episode's final observation, V = 4.
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    half, one = torch.full((3, 1), 0.5), torch.ones(3, 1)
    ends = torch.tensor([[False], [True], [False]])
    v, _ = gae(rewards, half, one, torch.tensor([[1.0], [4.0], [1.0]]), ends, 0.5)
    # δ = (1 + .5 - 1, 2 + 2 - 1, 3 + .5 - 1) = (.5, 3, 2.5); A = (.5 + .25 * 3, 3, 2.5)
    assert v.squeeze().tolist() == [2.25, 4.0, 3.5]


def test_lambda_one_is_the_discounted_return() -> None:
    case = episodes_case()
    v, _ = run(case, 1.0)
    r, nv = case.rewards[:, 0], case.next_values[:, 0]
    expected = {
        0: r[0] + GAMMA * r[1] + GAMMA**2 * r[2],  # terminated at 2: no bootstrap
        3: r[3] + GAMMA * r[4] + GAMMA**2 * r[5] + GAMMA**3 * nv[5],  # truncated at 5
        6: r[6] + GAMMA * r[7] + GAMMA**2 * r[8] + GAMMA**3 * nv[8],  # cut by the sequence's end
    }
    for t, value in expected.items():
        torch.testing.assert_close(v[t, 0], value)


def test_lambda_zero_is_the_one_step_return() -> None:
    case = random_case(4)
    torch.testing.assert_close(run(case, 0.0).v, case.rewards + case.discounts * case.next_values)


@pytest.mark.parametrize("lam", [0.3, 1.0])
def test_equals_vtrace_on_policy_with_traces_clipped_at_lambda(lam: float) -> None:
    case = random_case(5)
    case.log_rhos.zero_()
    v = vtrace(**case.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends"), c_bar=lam)
    torch.testing.assert_close(run(case, lam).v, v, rtol=1e-12, atol=1e-12)
