"""The trust region against its definition: λ in LASER's sum, and nothing of a rejected step in an earlier target."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from tests.support.target_cases import ESTIMATORS, Case, episodes_case, final_step, naive, product, random_case
from torch import Tensor

from casa.targets import dr_trace, retrace, trust_region, vtrace

V_ARGUMENTS = ("rewards", "discounts", "values", "next_values", "log_rhos", "ends")
Q_ARGUMENTS = ("rewards", "discounts", "q_taken", "next_values", "log_rhos", "ends")
THRESHOLD = 0.5


def divergences(case: Case, seed: int = 0) -> Tensor:
    return torch.rand(case.rewards.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def restricted(case: Case) -> tuple[Case, Tensor]:
    """The same case with the ratios of the trust region, and λ."""
    log_rhos, trusted = trust_region(case.log_rhos, divergences(case), THRESHOLD)
    return Case(**{**vars(case), "log_rhos": log_rhos}), trusted


def literal_trusted_vtrace(case: Case, trusted: Tensor, rho_bar: float, c_bar: float) -> Tensor:
    """V_t + Σ_k γᵏ (Π_{i<k} λ_{t+i} c_{t+i}) λ_{t+k} ρ_{t+k} δ_{t+k}: LASER's equation 8."""
    rho, c = case.log_rhos.exp().clamp(max=rho_bar), case.log_rhos.exp().clamp(max=c_bar)
    kept = trusted.double()

    def terms(t: int, b: int) -> Iterator[float]:
        yield case.values[t, b].item()
        for s in range(t, final_step(case, t, b) + 1):
            delta = case.rewards[s, b] + case.discounts[s, b] * case.next_values[s, b] - case.values[s, b]
            weight = product(case.discounts, b, t, s - 1) * product(c, b, t, s - 1) * product(kept, b, t, s)
            yield weight * (rho[s, b] * delta).item()

    return naive(terms, case.rewards)


def test_lambda_is_the_indicator_of_a_small_divergence() -> None:
    case = random_case(1)
    log_rhos, trusted = trust_region(case.log_rhos, divergences(case), THRESHOLD)
    for t, b in torch.cartesian_prod(*(torch.arange(n) for n in trusted.shape)).tolist():
        inside = divergences(case)[t, b].item() < THRESHOLD
        assert trusted[t, b].item() == inside
        assert log_rhos[t, b].item() == (case.log_rhos[t, b].item() if inside else -math.inf)
    assert 0 < trusted.double().mean() < 1


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (1.05, 0.7)])
def test_vtrace_in_it_is_the_literal_sum(rho_bar: float, c_bar: float) -> None:
    for case in (episodes_case(), random_case(1), random_case(2, steps=1), random_case(3, end_rate=0.0)):
        inside, trusted = restricted(case)
        found = vtrace(**inside.of(*V_ARGUMENTS), rho_bar=rho_bar, c_bar=c_bar)
        expected = literal_trusted_vtrace(case, trusted, rho_bar, c_bar)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_return_bootstraps_where_it_leaves_the_region() -> None:
    """V^ = V outside; the step before it is a one-step return, with E_π[Q] for ReTrace."""
    case = random_case(4, end_rate=0.0)
    inside, trusted = restricted(case)
    v, q = dr_trace(**inside.of("q_taken", *V_ARGUMENTS))
    assert torch.equal(v[~trusted], case.values[~trusted])
    before = trusted[:-1] & ~trusted[1:]
    assert before.any()
    one_step = (case.rewards + case.discounts * case.next_values)[:-1][before]
    torch.testing.assert_close(q[:-1][before], one_step)
    torch.testing.assert_close(retrace(**inside.of(*Q_ARGUMENTS))[:-1][before], one_step)


@pytest.mark.parametrize("name", ["vtrace", "vtrace_advantage", "retrace", "dr_trace.v", "dr_trace.q"])
def test_no_trace_crosses_a_rejected_step(name: str) -> None:
    """Other rewards from a rejected step on change no target before it; from a trusted one on they do."""
    case = random_case(5, batch=1, end_rate=0.0)
    for rejected in (True, False):
        far = torch.zeros_like(case.rewards)
        far[6] = 1.0 if rejected else 0.0
        log_rhos, _ = trust_region(case.log_rhos, far, THRESHOLD)
        changed = case.rewards.clone()
        changed[6:] += 10
        one, other = (
            ESTIMATORS[name](Case(**{**vars(case), "log_rhos": log_rhos, "rewards": rewards}))[:6]
            for rewards in (case.rewards, changed)
        )
        assert torch.equal(one, other) == rejected


def test_a_threshold_above_every_divergence_changes_nothing() -> None:
    case = random_case(6)
    log_rhos, trusted = trust_region(case.log_rhos, divergences(case), 1.0)
    assert torch.equal(log_rhos, case.log_rhos) and trusted.all()


def test_the_threshold_must_be_positive() -> None:
    case = random_case(7)
    with pytest.raises(ValueError, match="positive threshold, got 0"):
        trust_region(case.log_rhos, divergences(case), 0.0)
