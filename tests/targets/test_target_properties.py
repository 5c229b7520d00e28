"""What holds of every estimator: ends are walls, results are finite, detached and fp32, the graph is one."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.target_cases import ESTIMATORS, Case, random_case
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from casa.targets import gae, one_step, vtrace

every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any shape, any pattern of ends, ratios up to e^±50, fp32."""
    case = random_case(
        seed=draw(st.integers(0, 2**31)),
        steps=draw(st.integers(1, 12)),
        batch=draw(st.integers(1, 4)),
        end_rate=draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])),
        ratio_scale=draw(st.sampled_from([0.0, 1.0, 20.0])),
    ).to(torch.float32)
    case.log_rhos.clamp_(-50.0, 50.0)
    extreme = draw(st.sampled_from([0.0, 50.0, -50.0]))
    if extreme:
        case.log_rhos[torch.rand(case.log_rhos.shape, generator=torch.Generator().manual_seed(1)) < 0.5] = extreme
    case.rewards *= draw(st.sampled_from([0.0, 1.0, 1e4]))
    return case


@every_estimator
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_finite_detached_and_of_the_same_shape(name: str, case: Case) -> None:
    result = ESTIMATORS[name](case)
    assert result.shape == case.rewards.shape
    assert result.isfinite().all()
    assert result.dtype == torch.float32


@every_estimator
@settings(max_examples=40, deadline=None)
@given(case=cases(), data=st.data())
def test_an_episode_is_worth_the_same_alone(name: str, case: Case, data: st.DataObject) -> None:
    # Cut the sequence after any step at which every environment's episode ends: nothing before changes.
    cut = data.draw(st.integers(0, case.rewards.shape[0] - 1))
    case.ends[cut] = True
    whole = ESTIMATORS[name](case)
    alone = ESTIMATORS[name](case.map(lambda x: x[: cut + 1]))
    assert torch.equal(whole[: cut + 1], alone)
    if cut + 1 < case.rewards.shape[0]:
        after = ESTIMATORS[name](case.map(lambda x: x[cut + 1 :]))
        assert torch.equal(whole[cut + 1 :], after)


@every_estimator
def test_nothing_leaks_out_of_the_slot_after_an_end(name: str) -> None:
    # In the stream of slots, the one after an end holds the final observation, and its action, reward and
    # ratio mean nothing.
    case = random_case(21, steps=15, end_rate=0.2)
    before = ESTIMATORS[name](case)
    dummy = torch.cat([torch.zeros_like(case.ends[:1]), case.ends[:-1]])
    real = ~dummy
    for field, garbage in (("rewards", 1e9), ("q_taken", -1e9), ("log_rhos", 50.0), ("discounts", 1e3)):
        getattr(case, field)[dummy] = garbage
    # A dummy slot that is not itself an end would hand its garbage on to nobody; one that is, likewise.
    assert torch.equal(ESTIMATORS[name](case)[real], before[real])
    assert not torch.equal(ESTIMATORS[name](case), before)


@every_estimator
def test_a_truncation_bootstraps_and_a_termination_does_not(name: str) -> None:
    case = random_case(22, end_rate=0.4)
    case.log_rhos.zero_()
    terminated = case.ends & (case.discounts == 0)
    truncated = case.ends & (case.discounts > 0)
    assert terminated.any()
    assert truncated.any()
    before = ESTIMATORS[name](case)
    case.next_values[case.ends] += 1.0
    change = ESTIMATORS[name](case) - before
    assert (change[truncated] > 0).all()
    assert (change[terminated] == 0).all()


@every_estimator
def test_environments_do_not_mix(name: str) -> None:
    case = random_case(23)
    order = torch.tensor([3, 1, 4, 0, 2])
    shuffled = ESTIMATORS[name](case.map(lambda x: x[:, order]))
    assert torch.equal(shuffled, ESTIMATORS[name](case)[:, order])


@every_estimator
def test_no_gradient_flows_through_a_target(name: str) -> None:
    case = random_case(24).map(lambda x: x if x.dtype == torch.bool else x.requires_grad_())
    assert not ESTIMATORS[name](case).requires_grad


@every_estimator
def test_inputs_are_left_alone(name: str) -> None:
    case = random_case(25)
    copy = case.map(torch.clone)
    ESTIMATORS[name](case)
    assert all(torch.equal(x, vars(copy)[field]) for field, x in vars(case).items())


@every_estimator
def test_bf16_inputs_keep_fp32_accuracy(name: str) -> None:
    # Long, so that a sum in bf16 (8 bits) would be far away from the same inputs summed in fp64.
    case = random_case(26, steps=60, end_rate=0.02, ratio_scale=0.1).to(torch.bfloat16)
    result = ESTIMATORS[name](case)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), ESTIMATORS[name](case.to(torch.float64)), rtol=1e-5, atol=1e-5)


@every_estimator
def test_under_autocast_sums_stay_in_fp32(name: str) -> None:
    case = random_case(27, steps=30).to(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = ESTIMATORS[name](case)
    torch.testing.assert_close(result, ESTIMATORS[name](case), rtol=0, atol=0)


@every_estimator
def test_compiles_into_one_graph(name: str) -> None:
    estimate = ESTIMATORS[name]
    arguments = list(vars(random_case(28, steps=6)).values())

    def function(*tensors: Tensor) -> Tensor:
        return estimate(Case(*tensors))

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=0, atol=0)


class CountOperations(TorchDispatchMode):
    """Counts what runs, so that a cost in T is a number and not a time."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


@every_estimator
def test_twice_the_time_costs_a_few_operations_more(name: str) -> None:
    counts = []
    for steps in (16, 32, 64, 128):
        case = random_case(29, steps=steps)
        with CountOperations() as counter:
            ESTIMATORS[name](case)
        counts.append(counter.count)
    assert all(0 <= after - before <= 10 for before, after in itertools.pairwise(counts))


def test_ends_may_be_floats() -> None:
    case = random_case(30)
    arguments = case.of("rewards", "discounts", "values", "next_values")
    expected = gae(**arguments, ends=case.ends, lam=0.8).v
    assert torch.equal(gae(**arguments, ends=case.ends.double(), lam=0.8).v, expected)
    returns = one_step(**case.of("rewards", "discounts", "next_values"), v_targets=expected, ends=case.ends)
    floats = one_step(**case.of("rewards", "discounts", "next_values"), v_targets=expected, ends=case.ends.float())
    assert torch.equal(returns, floats)


def test_wrong_shapes_are_named() -> None:
    case = random_case(31)
    arguments = case.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends")
    with pytest.raises(ValueError, match="log_rhos has shape"):
        vtrace(**{**arguments, "log_rhos": case.log_rhos[:-1]})
    with pytest.raises(ValueError, match="T >= 1"):
        vtrace(**{name: x[:0] for name, x in arguments.items()})
    with pytest.raises(ValueError, match="v_targets has shape"):
        one_step(**case.of("rewards", "discounts", "next_values", "ends"), v_targets=case.values[1:])
