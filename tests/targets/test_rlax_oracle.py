"""rlax, in JAX, as an independent oracle.

rlax writes a window of K + 1 states s_0 … s_K and, as Sutton and Barto do, calls the reward and the discount
of s_{t-1} → s_t r_t and discount_t. So its `r_t`, `discount_t` and `v_t` (times 1 … K) are `rewards`,
`discounts` and `next_values` here (times 0 … T-1 = K-1), and its `v_tm1`, `q_tm1`, `rho_tm1` (times 0 … K-1)
are `values`, `q_taken` and the ratios. ReTrace's `q_t` and `log_rhos` are at times 1 … K-1: `q_taken[1:]` and
`log_rhos[1:]`. rlax has no `ends`; a vector `lambda_` that is 0 at an end cuts the trace there.
"""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import pytest
import rlax
import torch
from tests.support.target_cases import Case, episodes_case, random_case

from casa.targets import h, h_inverse, n_step_q, retrace, vtrace, vtrace_advantage
from casa.targets.categorical import atoms, project

jax.config.update("jax_enable_x64", True)

CASES = [episodes_case(), random_case(11), random_case(12, steps=20, end_rate=0.1, ratio_scale=2.0)]


def columns(case: Case) -> list[dict[str, np.ndarray]]:
    arrays = {name: x.numpy() for name, x in vars(case).items()}
    return [{name: x[:, b] for name, x in arrays.items()} for b in range(case.rewards.shape[1])]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rho_bar", [1.0, 1.05])
def test_vtrace(case: Case, rho_bar: float) -> None:
    arguments = case.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends")
    ours = vtrace(**arguments, rho_bar=rho_bar).numpy()
    for b, column in enumerate(columns(case)):
        errors = rlax.vtrace(
            v_tm1=column["values"],
            v_t=column["next_values"],
            r_t=column["rewards"],
            discount_t=column["discounts"],
            rho_tm1=np.exp(column["log_rhos"]),
            lambda_=1.0 - column["ends"].astype(np.float64),
            clip_rho_threshold=rho_bar,
        )
        np.testing.assert_allclose(ours[:, b], column["values"] + errors, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_vtrace_advantage(case: Case) -> None:
    # Where its lambda is 0, rlax bootstraps the advantage from v_tm1[t+1]; so the final observation's value
    # stands in slot t+1 here, as in a stream that keeps the final observation.
    case = case.map(torch.clone)
    case.next_values[:-1] = case.values[1:]
    arguments = case.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends")
    ours = vtrace_advantage(**arguments, v_targets=vtrace(**arguments), rho_bar=1.5).numpy()
    for b, column in enumerate(columns(case)):
        theirs = rlax.vtrace_td_error_and_advantage(
            v_tm1=column["values"],
            v_t=column["next_values"],
            r_t=column["rewards"],
            discount_t=column["discounts"],
            rho_tm1=np.exp(column["log_rhos"]),
            lambda_=1.0 - column["ends"].astype(np.float64),
            clip_pg_rho_threshold=1.5,
        ).pg_advantage
        np.testing.assert_allclose(ours[:, b], theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_retrace(case: Case) -> None:
    ours = retrace(**case.of("rewards", "discounts", "q_taken", "next_values", "log_rhos", "ends")).numpy()
    for b, column in enumerate(columns(case)):
        # c_t at time t = 1 … K-1 multiplies what comes back over the transition t-1 → t: cut by ends[t-1].
        errors = rlax.retrace_continuous(
            q_tm1=column["q_taken"],
            q_t=column["q_taken"][1:],
            v_t=column["next_values"],
            r_t=column["rewards"],
            discount_t=column["discounts"],
            log_rhos=column["log_rhos"][1:],
            lambda_=1.0 - column["ends"][:-1].astype(np.float64),
        )
        np.testing.assert_allclose(ours[:, b], column["q_taken"] + errors, rtol=1e-10, atol=1e-10)


def test_n_step_q() -> None:
    # rlax's n-step return knows terminations (discount 0) alone, so no truncations here.
    case = random_case(13, end_rate=0.3)
    case.discounts[case.ends] = 0.0
    ours = n_step_q(**case.of("rewards", "discounts", "next_values", "ends"), n=5).numpy()
    for b, column in enumerate(columns(case)):
        returns = rlax.n_step_bootstrapped_returns(
            column["rewards"], column["discounts"], rlax.signed_parabolic(column["next_values"], 1e-3), n=5
        )
        np.testing.assert_allclose(ours[:, b], rlax.signed_hyperbolic(returns, 1e-3), rtol=1e-8, atol=1e-8)


def test_h() -> None:
    x = np.linspace(-300.0, 300.0, 61)
    squashed, stretched = rlax.signed_hyperbolic(x, 1e-3), rlax.signed_parabolic(x, 1e-3)
    np.testing.assert_allclose(h(torch.from_numpy(x)).numpy(), squashed, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(h_inverse(torch.from_numpy(x)).numpy(), stretched, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("count", [2, 11, 51])
def test_categorical_projection(count: int) -> None:
    g, support = torch.Generator().manual_seed(0), (-10.0, 10.0)
    values = 8 * torch.randn(20, 51, generator=g, dtype=torch.float64).sort(-1).values
    probabilities = torch.softmax(torch.randn(20, 51, generator=g, dtype=torch.float64), -1)
    ours, z = project(values, probabilities, support, count), atoms(support, count, values)
    for row, x, p in zip(ours, values, probabilities, strict=True):
        np.testing.assert_allclose(row, rlax.categorical_l2_project(x.numpy(), p.numpy(), z.numpy()), atol=1e-12)
