"""The sum tree against a plain list, its sampling frequencies, and R2D2's priority and weights by hand."""

from __future__ import annotations

import bisect
import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from casa.rollout.sum_tree import FANOUT, SumTree, importance_weights, sequence_priority


class SlowTree:
    """The twin: a list, a running sum and a search."""

    def __init__(self, capacity: int) -> None:
        self.leaves = [0.0] * capacity

    def set(self, indices: list[int], priorities: list[float]) -> None:
        for index, priority in zip(indices, priorities, strict=True):
            self.leaves[index] = priority

    def find(self, mass: float) -> int:
        return bisect.bisect_right(list(itertools.accumulate(self.leaves)), mass)


class Fixed:
    """A generator that hands out chosen numbers in [0, 1)."""

    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values)

    def random(self, n: int) -> np.ndarray:
        assert n == len(self.values)
        return self.values


# Multiples of 1/8 below 2**20 add without rounding, so tree and list must agree on every draw.
EXACT = st.integers(0, 2**20).map(lambda k: k / 8) | st.just(0.0)
# Magnitudes far apart, where rounding does happen.
ROUGH = st.just(0.0) | st.floats(1e-12, 1e12) | st.sampled_from([0.1, 0.3, 5e-324, 1e-300, 1e300])
CAPACITY = st.sampled_from([1, 2, FANOUT - 1, FANOUT, FANOUT + 1, 100, FANOUT**2, FANOUT**2 + 1, 3000])
BELOW_ONE = float(np.nextafter(1.0, 0.0))


@st.composite
def operations(draw: st.DrawFn, priorities: st.SearchStrategy[float]):
    """(capacity, several batches of (indices, priorities)), with repeated indices inside a batch."""
    capacity = draw(CAPACITY)
    index = st.integers(0, capacity - 1) | st.sampled_from([0, capacity - 1])
    batch = st.lists(st.tuples(index, priorities), max_size=12)
    return capacity, draw(st.lists(batch, min_size=1, max_size=6))


@given(operations(EXACT), st.lists(st.integers(0, 2**12 - 1), min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_equals_slow_twin(case, draws) -> None:
    capacity, batches = case
    tree, slow = SumTree(capacity), SlowTree(capacity)
    for batch in batches:
        indices, priorities = [i for i, _ in batch], [p for _, p in batch]
        tree.set(indices, priorities)
        slow.set(indices, priorities)
        assert tree.total == sum(slow.leaves)
        assert tree.get(np.arange(capacity)).tolist() == slow.leaves
    if tree.total == 0:
        with pytest.raises(ValueError, match="all 0"):
            tree.sample(1, np.random.default_rng(0))
        return
    uniform = [k / 2**12 for k in draws]
    indices, probabilities = tree.sample(len(draws), Fixed(uniform), stratified=False)
    assert indices.tolist() == [slow.find(u * tree.total) for u in uniform]
    assert probabilities.tolist() == [slow.leaves[i] / tree.total for i in indices]


@given(operations(ROUGH), st.lists(st.floats(0, BELOW_ONE) | st.just(BELOW_ONE), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_rounding_never_yields_an_empty_leaf(case, uniform) -> None:
    capacity, batches = case
    tree = SumTree(capacity)
    for batch in batches:
        tree.set([i for i, _ in batch], [p for _, p in batch])
    assert tree.total == pytest.approx(sum(tree.get(np.arange(capacity))), rel=1e-12)
    if tree.total > 0:
        for stratified in (False, True):
            indices, probabilities = tree.sample(len(uniform), Fixed(uniform), stratified)
            assert ((indices >= 0) & (indices < capacity)).all()
            assert (tree.get(indices) > 0).all()
            assert (probabilities == tree.get(indices) / tree.total).all()


def test_mass_past_the_last_edge() -> None:
    """Sums that round differently from running sums, a draw at the very top, and nothing but zeros behind."""
    rng = np.random.default_rng(0)
    overshoots = 0
    for _ in range(500):
        tree = SumTree(FANOUT)
        filled = rng.integers(2, FANOUT)
        tree.set(np.arange(filled), rng.random(filled) * 10.0 ** rng.integers(-8, 8, filled))
        overshoots += BELOW_ONE * tree.total >= np.cumsum(tree.get(np.arange(FANOUT)))[-1]
        indices, _ = tree.sample(1, Fixed([BELOW_ONE]), stratified=False)
        assert tree.get(indices)[0] > 0
    assert overshoots > 10, "the case this test is about did not come up"


@given(operations(ROUGH))
@settings(max_examples=100, deadline=None)
def test_state_rebuilds_the_tree_to_the_bit(case) -> None:
    capacity, batches = case
    tree = SumTree(capacity)
    for batch in batches:
        tree.set([i for i, _ in batch], [p for _, p in batch])
    saved = tree.state_dict()
    other = SumTree(capacity)
    other.load_state_dict(saved)
    for mine, theirs in zip(tree._levels, other._levels, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    if tree.total > 0:
        drawn = [t.sample(16, np.random.default_rng(1)) for t in (tree, other)]
        assert np.array_equal(drawn[0][0], drawn[1][0])
        assert np.array_equal(drawn[0][1], drawn[1][1])


def test_state_is_a_copy_and_checked() -> None:
    tree = SumTree(5)
    saved = tree.state_dict()
    tree.set([0], [1.0])
    assert saved["priorities"].tolist() == [0.0] * 5
    with pytest.raises(ValueError, match="this tree 6"):
        SumTree(6).load_state_dict(saved)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Σ (n - E)²/E, in standard deviations above its mean (k - 1 degrees: mean k - 1, variance 2(k - 1))."""
    degrees = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("capacity", [7, 300])
def test_frequencies(stratified: bool, capacity: int) -> None:
    rng = np.random.default_rng(3)
    priorities = rng.random(capacity) ** 2 + 0.05
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), priorities)
    drawn = np.concatenate([tree.sample(8, rng, stratified)[0] for _ in range(5000)])
    counts = np.bincount(drawn, minlength=capacity)
    share = priorities / priorities.sum()
    assert chi_square(counts, share * len(drawn)) < 4
    # The measure can fail: the uniform distribution is rejected.
    assert chi_square(counts, np.full(capacity, len(drawn) / capacity)) > 20


def test_stratified_takes_one_draw_from_each_slice() -> None:
    tree = SumTree(64)
    tree.set(np.arange(64), np.ones(64))
    for seed in range(20):
        indices, probabilities = tree.sample(8, np.random.default_rng(seed))
        assert (indices // 8).tolist() == list(range(8))
        assert (probabilities == 1 / 64).all()
    independent = [tree.sample(8, np.random.default_rng(s), stratified=False)[0] // 8 for s in range(20)]
    assert any(sorted(slices) != list(range(8)) for slices in independent)


def test_last_of_repeated_indices_wins() -> None:
    tree = SumTree(1000)
    tree.set([3, 900, 3, 900, 3], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert tree.get([3, 900]).tolist() == [5.0, 4.0]
    assert tree.total == 9.0


@pytest.mark.parametrize(
    ("indices", "priorities", "match"),
    [
        ([10], [1.0], "lie in"),
        ([-1], [1.0], "lie in"),
        ([0.5], [1.0], "integers"),
        ([[0]], [[1.0]], "vector"),
        ([0, 1], [1.0], "shape"),
        ([0], [-1e-9], "finite"),
        ([0, 1], [1.0, float("nan")], "finite"),
        ([0], [float("inf")], "finite"),
        ([0], [1.7e308], "finite"),
    ],
)
def test_refuses_and_stays_as_it_was(indices, priorities, match) -> None:
    tree = SumTree(10)
    tree.set([0, 1], [2.0, 3.0])
    with pytest.raises(ValueError, match=match):
        tree.set(indices, priorities)
    assert tree.total == 5.0
    assert tree.get([0, 1]).tolist() == [2.0, 3.0]


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)
    tree = SumTree(3)
    tree.set([1], [1.0])
    with pytest.raises(ValueError, match="at least 1"):
        tree.sample(0, np.random.default_rng(0))
    tree.set([], [])
    assert tree.sample(4, np.random.default_rng(0))[0].tolist() == [1] * 4


def test_fast_enough() -> None:
    """8 sequences out of 400,000 frames / 40: the best of many, so that a busy machine does not decide."""
    rng = np.random.default_rng(0)
    tree = SumTree(10_000)
    tree.set(np.arange(10_000), rng.random(10_000))
    priorities = rng.random(8)
    times = []
    for _ in range(300):
        begin = time.perf_counter()
        indices, _ = tree.sample(8, rng)
        tree.set(indices, priorities)
        times.append(time.perf_counter() - begin)
    assert min(times) < 2e-4


def test_sequence_priority_by_hand() -> None:
    errors = torch.tensor([[1.0, float("nan"), 5.0], [-3.0, 2.0, 5.0], [2.0, -4.0, 5.0]], requires_grad=True)
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, False]])
    result = sequence_priority(errors, mask)
    expected = [0.9 * 3 + 0.1 * 2, 0.9 * 4 + 0.1 * 3, 0.0]
    assert result.tolist() == pytest.approx(expected)
    assert not result.requires_grad
    assert sequence_priority(errors, mask, eta=0.0).tolist() == pytest.approx([2.0, 3.0, 0.0])
    assert sequence_priority(errors.detach().bfloat16(), mask).dtype == torch.float32
    with pytest.raises(ValueError, match=r"\[T, B\]"):
        sequence_priority(errors, mask[:2])


def test_sequence_priority_shows_a_broken_step() -> None:
    """A NaN in a valid step stays visible, and the tree refuses it, instead of a silent 0."""
    priority = sequence_priority(torch.tensor([[float("nan")]]), torch.ones(1, 1))
    with pytest.raises(ValueError, match="finite"):
        SumTree(1).set([0], priority)


def test_importance_weights_by_hand() -> None:
    probabilities = np.array([0.5, 0.25, 0.125])
    assert importance_weights(probabilities, 10, 1.0).tolist() == [0.25, 0.5, 1.0]
    assert importance_weights(probabilities, 10, 0.5).tolist() == pytest.approx([0.5, 0.5**0.5, 1.0])
    assert importance_weights(probabilities, 10, 0.0).tolist() == [1.0, 1.0, 1.0]
    assert importance_weights(probabilities, 10, 0.5).dtype == np.float32
    with pytest.raises(ValueError, match="> 0"):
        importance_weights(np.array([0.5, 0.0]), 10, 1.0)


def test_importance_weights_undo_the_priorities() -> None:
    """With β = 1 the weighted mean over prioritized draws is the plain mean over all leaves."""
    rng = np.random.default_rng(0)
    tree = SumTree(50)
    values = rng.random(50) + 0.1
    tree.set(np.arange(50), values)
    indices, probabilities = tree.sample(100_000, rng)
    weights = importance_weights(probabilities, 50, 1.0)
    weighted = float((weights * values[indices]).sum() / weights.sum())
    assert weighted == pytest.approx(values.mean(), rel=0.02)
    assert abs(values[indices].mean() - values.mean()) > 0.1 * values.mean()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sequence_priority_stays_on_the_device() -> None:
    errors = torch.randn(40, 8, device="cuda")
    result = sequence_priority(errors, torch.ones_like(errors))
    assert result.is_cuda
    assert torch.allclose(result.cpu(), sequence_priority(errors.cpu(), torch.ones(40, 8)))
