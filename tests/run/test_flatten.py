"""States taken apart and put together again, exactly."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from casa.run.flatten import flatten, unflatten


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down; NaN equals NaN, 0.0 does not equal -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(j, k) and same(x, y) for (j, x), (k, y) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def through_json(state: Any) -> Any:
    tensors, encoded = flatten(state)
    return unflatten(tensors, json.loads(json.dumps(encoded, allow_nan=False)))


TRICKY = st.sampled_from(["", "$", "$tensor", "$dict", "$$", "a/b", "__metadata__", "step", "0"])
KEYS = st.integers() | st.text(max_size=5) | TRICKY | st.booleans() | st.none() | st.tuples(st.integers())
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**130), 2**130)
    | st.floats()
    | st.text(max_size=5)
    | TRICKY
    | st.integers(0, 5).map(lambda n: torch.arange(n))
    | st.floats(width=32, allow_nan=False).map(torch.tensor)
    | st.integers(0, 3).map(lambda n: np.arange(n, dtype=np.uint32))
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(TRICKY, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(STATES)
@settings(max_examples=300, deadline=None)
def test_round_trip(state: Any) -> None:
    assert same(through_json(state), state)


def test_exact_floats() -> None:
    state = [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 0.1, 1.7976931348623157e308]
    assert same(through_json(state), state)


def test_names_that_meet_stay_apart() -> None:
    state = {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1), "a/b#2": torch.full((1,), 2.0), "": torch.ones(3)}
    assert same(through_json(state), state)


def test_the_comparison_can_fail() -> None:
    for a, b in [(1, True), (1, 1.0), (0.0, -0.0), ([1], (1,)), ({1: 2}, {"1": 2}), (torch.ones(1), torch.ones(2))]:
        assert not same(a, b)


def test_optimizer_continues_as_if_never_stopped() -> None:
    def fresh() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        return net, torch.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.9, 0.98), amsgrad=True)

    def train(net: torch.nn.Linear, optimizer: torch.optim.AdamW, seeds: range) -> None:
        for seed in seeds:
            optimizer.zero_grad()
            net(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
            optimizer.step()

    whole, whole_optimizer = fresh()
    train(whole, whole_optimizer, range(6))
    first, first_optimizer = fresh()
    train(first, first_optimizer, range(3))
    saved = [first.state_dict(), first_optimizer.state_dict()]
    assert same(through_json(saved)[1], saved[1])
    second, second_optimizer = fresh()
    second.load_state_dict(through_json(saved[0]))
    second_optimizer.load_state_dict(through_json(saved[1]))
    train(second, second_optimizer, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_numpy_generators(kind: type) -> None:
    generator = np.random.Generator(kind(7))
    generator.random(5, dtype=np.float32)
    saved = through_json(generator.bit_generator.state)
    expected = generator.random(10)
    other = np.random.Generator(kind(1))
    other.bit_generator.state = saved
    assert np.array_equal(other.random(10), expected)


def test_torch_generator() -> None:
    generator = torch.Generator().manual_seed(3)
    torch.rand(3, generator=generator)
    saved = through_json({"torch": generator.get_state()})
    expected = torch.rand(10, generator=generator)
    other = torch.Generator()
    other.set_state(saved["torch"])
    assert torch.equal(torch.rand(10, generator=other), expected)


def test_parameters_mappings_and_numpy_scalars_become_plain() -> None:
    state = OrderedDict(w=torch.nn.Parameter(torch.ones(2)), x=np.float32(0.1), n=np.int64(3), b=np.bool_(True))
    back = through_json(state)
    assert type(back) is dict
    assert type(back["w"]) is torch.Tensor
    assert same([back["x"], back["n"], back["b"]], [float(np.float32(0.1)), 3, True])


def test_arrays_of_every_layout() -> None:
    array = np.arange(12.0).reshape(3, 4)
    frozen = array.copy()
    frozen.flags.writeable = False
    for given_array in (array.T, array[::-1, ::2], frozen, np.array(5), np.zeros((0, 3)), np.array([True])):
        assert same(through_json(given_array), np.array(given_array))


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, Pair(1, 2), np.array(["a"]), np.array([object()])])
def test_what_cannot_be_kept_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="optimizer/0/x"):
        flatten({"optimizer": [{"x": value}]})


@pytest.mark.parametrize(
    "encoded",
    [
        {"$tensor": "missing"},
        {"$tensor": 3},
        {"$tensor": "t", "other": 1},
        {"$import": "os"},
        {"$float": "1e9"},
        {"$dict": [[1]]},
        {"$tuple": "abc"},
    ],
)
def test_a_forged_form_is_refused(encoded: Any) -> None:
    with pytest.raises(ValueError, match="unknown form"):
        unflatten({"t": torch.ones(1)}, encoded)
