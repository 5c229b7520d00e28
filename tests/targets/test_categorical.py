"""The categorical projection and its n-step returns against C51's algorithm 1 and the sums, written as loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.target_cases import GAMMA, Case, episodes_case, final_step, product, random_case
from torch import Tensor

from casa.targets import h, h_inverse, n_step_categorical, n_step_q
from casa.targets.categorical import atoms, project

SUPPORT, N = (-2.0, 3.0), 11


def literal_project(values: list[float], probabilities: list[float], support: tuple[float, float], n: int) -> Tensor:
    """Algorithm 1 of C51: each mass to the atoms below and above, by its distance to the other."""
    low, high = support
    step, out = (high - low) / (n - 1), [0.0] * n
    for x, p in zip(values, probabilities, strict=True):
        b = (min(max(x, low), high) - low) / step
        below, above = min(math.floor(b), n - 1), min(math.ceil(b), n - 1)
        if below == above:
            out[below] += p
        else:
            out[below] += p * (above - b)
            out[above] += p * (b - below)
    return torch.tensor(out, dtype=torch.float64)


def distributions(*shape: int, seed: int = 0) -> Tensor:
    return torch.softmax(2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double(), -1)


@settings(deadline=None, max_examples=60)
@given(
    low=st.floats(-20, 5),
    width=st.floats(0.1, 30),
    n=st.integers(2, 60),
    given=st.lists(st.tuples(st.floats(-60, 60), st.floats(0, 1)), min_size=1, max_size=20),
)
def test_the_projection_is_the_published_algorithm(
    low: float, width: float, n: int, given: list[tuple[float, float]]
) -> None:
    support = (low, low + width)
    values, masses = (torch.tensor(column, dtype=torch.float64) for column in zip(*given, strict=True))
    found = project(values, masses, support, n)
    torch.testing.assert_close(found, literal_project(*zip(*given, strict=True), support, n), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.sum(), masses.sum(), rtol=1e-9, atol=1e-9)
    assert (found >= 0).all()
    mean = (found * atoms(support, n, found)).sum()
    torch.testing.assert_close(mean, (values.clamp(*support) * masses).sum(), rtol=1e-9, atol=1e-9)


def test_atoms_stay_where_they_are_and_the_rest_goes_to_the_edges() -> None:
    p, z = distributions(4, N), atoms(SUPPORT, N, torch.zeros(1).double())
    torch.testing.assert_close(project(z.expand(4, N), p, SUPPORT, N), p)
    outside = project(torch.tensor([-1e6, 1e6]), torch.tensor([0.25, 0.75]), SUPPORT, N)
    assert outside.tolist() == [0.25, *[0.0] * (N - 2), 0.75]


def test_mass_is_kept_in_fp32_and_half_precision_is_widened() -> None:
    p = distributions(200, 51).float()
    values = 25 * torch.randn(200, 51, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(project(values, p, (-10, 10), 51).sum(-1), torch.ones(200), rtol=0, atol=2e-6)
    assert project(values.bfloat16(), p.bfloat16(), (-10, 10), 51).dtype == torch.float32


def test_no_mass_is_lost_far_from_zero_in_single_precision() -> None:
    p = torch.softmax(torch.randn(1000, 51, generator=torch.Generator().manual_seed(0)), -1)
    for low, high in ((-10.0, 10.0), (1e5, 1e5 + 1), (1e6 - 10, 1e6)):
        values = low + (high - low) * torch.rand(1000, 51, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(project(values, p, (low, high), 51).sum(-1), torch.ones(1000), rtol=0, atol=1e-5)


def run(case: Case, p: Tensor, n: int, rescale: bool = False, support: tuple[float, float] = SUPPORT) -> Tensor:
    given = {**case.of("rewards", "discounts", "ends"), "next_probabilities": p}
    return n_step_categorical(**given, n=n, support=support, rescale=rescale)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 100])
def test_equals_the_literal_sum(n: int, rescale: bool) -> None:
    """Terminations, truncations and the sequence's end inside of n steps."""
    z = atoms(SUPPORT, N, torch.zeros(1).double())
    there, back = (h, h_inverse) if rescale else (lambda x: x, lambda x: x)
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        p = distributions(*case.rewards.shape, N, seed=5)
        found = run(case, p, n, rescale)
        for t in range(case.rewards.shape[0]):
            for b in range(case.rewards.shape[1]):
                last = min(t + n - 1, final_step(case, t, b))
                total = sum(product(case.discounts, b, t, s - 1) * case.rewards[s, b] for s in range(t, last + 1))
                values = there(total + product(case.discounts, b, t, last) * back(z))
                expected = literal_project(values.tolist(), p[last, b].tolist(), SUPPORT, N)
                torch.testing.assert_close(found[t, b], expected, rtol=1e-9, atol=1e-12)


def test_after_a_termination_all_mass_is_at_the_return_and_a_truncation_bootstraps() -> None:
    case = episodes_case()
    case.rewards.fill_(0.5)
    p = torch.zeros(9, 1, N, dtype=torch.float64)
    p[..., 6] = 1.0  # Z = 1 everywhere
    found = run(case, p, 3)
    z = atoms(SUPPORT, N, found)
    mean = (found * z).sum(-1)[:, 0]
    assert mean[2] == 0.5 and found[2, 0, 5] == 1  # terminated: the atom 0.5 alone
    assert mean[1] == pytest.approx(0.5 + GAMMA * 0.5)
    assert mean[5] == mean[8] == pytest.approx(0.5 + GAMMA)
    assert mean[4] == pytest.approx(0.5 + GAMMA * 0.5 + GAMMA**2)  # two steps, then the final observation


@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_mean_is_the_n_step_return_of_the_mean(n: int) -> None:
    """Where nothing leaves the support: Q^ of `n_step_q`."""
    case, support = random_case(6), (-40.0, 40.0)
    p = distributions(*case.rewards.shape, 31, seed=2)
    p[..., :8] = p[..., 23:] = 0.0
    p = p / p.sum(-1, keepdim=True)
    z = atoms(support, 31, p)
    found = (run(case, p, n, support=support) * z).sum(-1)
    expected = n_step_q(case.rewards, case.discounts, (p * z).sum(-1), case.ends, n, rescale=False)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_no_gradient_and_no_wrong_shape() -> None:
    case = random_case(7)
    p = distributions(*case.rewards.shape, N).requires_grad_()
    assert not run(case, p, 3).requires_grad
    with pytest.raises(ValueError, match="n = 0"):
        run(case, p, 0)
    with pytest.raises(ValueError, match="next_probabilities has shape"):
        run(case, p[1:], 3)
