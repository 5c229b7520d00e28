"""Reuse is exact, sequences are whole, and prioritized draws follow the priorities of live sequences."""

import numpy as np
import pytest
import torch

from casa.rollout.ring import Ring, RingShape, Transitions
from casa.rollout.samplers import FifoSampler, PrioritizedSampler, Sample


def filled(ring, ticks, on_tick):
    """Write ticks whose reward is the absolute slot + 1000 x environment, so that batches can be told apart."""
    envs = np.arange(ring.shape.num_envs)
    no = torch.zeros(len(envs), dtype=torch.bool)

    def open_slots():
        ring.open(envs, torch.zeros(len(envs), 1), no, None)

    if ring.written[0] == 0:
        open_slots()
    for _ in range(ticks):
        rewards = torch.from_numpy(ring.written + 1000.0 * envs).float()
        ring.close(envs, Transitions(no.long(), rewards, rewards, no, no, 0))
        open_slots()
        on_tick()


def make_ring(envs=5, capacity=40, seq=4):
    return Ring(RingShape(capacity, envs, (1,), torch.float32, 1, 0, seq))


@pytest.mark.parametrize(("reuse", "burn_in", "batch"), [(1, 0, 5), (2, 0, 3), (2, 6, 4), (3, 4, 7)])
def test_fifo_uses_every_sequence_exactly_reuse_times(reuse, burn_in, batch):
    ring = make_ring()
    sampler = FifoSampler(ring, seq_len=4, burn_in=burn_in, batch=batch, reuse=reuse, rng=np.random.default_rng(0))
    seen = {}

    def on_tick():
        sampler.observe()
        while sampler.ready():
            batch_ = sampler.next().batch
            assert batch_.rewards.shape == (burn_in + 4, batch)
            steps = batch_.rewards.diff(dim=0)
            assert (steps == 1).all(), "a sequence must be one piece of one environment"
            for first in batch_.rewards[burn_in].tolist():
                seen[first] = seen.get(first, 0) + 1
        assert sampler.room()

    filled(ring, 400, on_tick)
    settled = {first: n for first, n in seen.items() if first % 1000 < 350}
    assert set(settled.values()) == {reuse}
    # Every transition is in the trained part of exactly one sequence.
    expected = {slot + 1000.0 * env for env in range(5) for slot in range(burn_in, 350) if (slot - burn_in) % 4 == 0}
    assert set(settled) == expected
    assert sampler.stats()["reuse"] == pytest.approx(reuse, rel=0.05)


def test_a_rollout_is_used_whole_in_shuffled_passes():
    """Sequences that come one by one wait for the others; each pass has each of them once; the order differs."""
    ring = make_ring(envs=1, capacity=80)
    sampler = FifoSampler(ring, seq_len=4, burn_in=0, batch=2, reuse=3, rng=np.random.default_rng(0), rollout=6)
    used = []

    def on_tick():
        assert sampler.room()
        sampler.observe()
        while sampler.ready():
            used.extend(sampler.next().batch.rewards[0].tolist())

    filled(ring, 4 * 6 - 1, on_tick)
    assert used == []
    saved = sampler.state_dict()
    assert len(saved["waiting"]) == 5
    sampler.load_state_dict(saved)
    filled(ring, 1, on_tick)
    passes = [used[i : i + 6] for i in range(0, 18, 6)]
    assert len(used) == 18 and all(sorted(one) == [0, 4, 8, 12, 16, 20] for one in passes)
    assert passes[0] != passes[1] != passes[2]


@pytest.mark.parametrize("rollout", [0, 2, 10])
def test_sequences_that_arrive_one_by_one_are_used_in_passes(rollout):
    """Episodes of different lengths put the environments out of step; a batch must not be copies of one sequence."""
    ring = make_ring(capacity=80)
    filled(ring, 65, lambda: None)
    sampler = FifoSampler(
        ring, seq_len=4, burn_in=0, batch=5, reuse=4, rng=np.random.default_rng(0), rollout=rollout
    )
    arrivals = iter([(np.array([env]), np.array([block])) for block in range(16) for env in range(5)])
    sampler.blocks.fresh = lambda: next(arrivals)
    served = []
    for _ in range(80):
        sampler.observe()
        while sampler.ready():
            sample = sampler.next()
            served.append(set(zip(sample.envs.tolist(), sample.blocks.tolist(), strict=True)))
    assert len(served) == 80 * 4 / 5
    assert all(len(batch) == 5 for batch in served)
    group = max(rollout, 5)
    for start in range(0, len(served), 4 * group // 5):
        assert len(set.union(*served[start : start + 4 * group // 5])) == group


def test_fifo_holds_the_actor_back_rather_than_lose_a_sequence():
    ring = make_ring(capacity=16)
    sampler = FifoSampler(ring, seq_len=4, burn_in=0, batch=5, reuse=1, rng=np.random.default_rng(0))
    ticks = 0
    while sampler.room():
        filled(ring, 1, sampler.observe)
        ticks += 1
        assert ticks < 20, "room() never said no"
    assert len(sampler.queue) <= 10, "no more than one cohort may wait while the next one is made"
    first = sampler.next().batch.rewards[0]
    assert sorted((first % 1000).tolist()) == [0.0] * 5


def make_prioritized(ring, **changed):
    options = {"seq_len": 4, "burn_in": 0, "batch": 8, "reuse": 2, "exponent": 0.9, "importance": 0.6, "min_fill": 0}
    return PrioritizedSampler(ring, **{**options, **changed}, rng=np.random.default_rng(1))


def test_the_importance_exponent_rises_to_one_over_the_run():
    """β = 0.4 + 0.6 · (transitions so far) / `anneal_over`; without it, β stays."""
    for over, expected in ((0, [0.4, 0.4, 0.4]), (192, [0.7, 1.0, 1.0])):
        ring = make_ring(envs=4, capacity=400)
        sampler, found = make_prioritized(ring, importance=0.4, anneal_over=over, exponent=1.0), []
        for _ in range(3):
            filled(ring, 24, sampler.observe)
            envs, blocks = np.divmod(np.flatnonzero(sampler.block_of >= 0), sampler.per_env)
            sampler.update(Sample(None, None, envs, blocks), 1.0 + np.arange(len(envs)))
            sampler.credit = 1.0
            sample = sampler.next()
            drawn = 1.0 + np.searchsorted(envs * 1000 + blocks, sample.envs * 1000 + sample.blocks)
            low, high = drawn.argmin(), drawn.argmax()
            ratio = float(sample.weights[low] / sample.weights[high])
            found.append(np.log(ratio) / np.log(drawn[high] / drawn[low]))
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_prioritized_draws_follow_priorities_and_weights_correct_them():
    ring = make_ring(envs=4, capacity=400)
    sampler = make_prioritized(ring)
    filled(ring, 24, sampler.observe)  # 24 sequences
    sequences = [(env, block) for env in range(4) for block in range(6)]
    size = {sequence: 1.0 + i % 7 for i, sequence in enumerate(sequences)}
    envs, blocks = np.array(sequences).T
    sampler.update(Sample(None, None, envs, blocks), np.array([size[sequence] for sequence in sequences]))
    counts = dict.fromkeys(sequences, 0)
    for _ in range(4000):
        sampler.credit = 1.0
        sample = sampler.next()
        drawn = list(zip(sample.envs.tolist(), sample.blocks.tolist(), strict=True))
        for sequence in drawn:
            counts[sequence] += 1
    powers = np.array([size[sequence] ** 0.9 for sequence in drawn])
    np.testing.assert_allclose(sample.weights, (powers / powers.min()) ** -0.6, rtol=1e-5)
    powered = np.array([size[sequence] ** 0.9 for sequence in sequences])
    expected = powered / powered.sum()
    observed = np.array([counts[sequence] for sequence in sequences]) / 32_000
    np.testing.assert_allclose(observed, expected, rtol=0.12)


def test_prioritized_never_serves_an_overwritten_sequence():
    ring = make_ring(envs=3, capacity=22)
    sampler = make_prioritized(ring, batch=3, burn_in=4)
    rng = np.random.default_rng(5)
    served = 0

    def on_tick():
        nonlocal served
        sampler.observe()
        if sampler.ready():
            sample = sampler.next()
            served += 1
            assert (sample.batch.rewards.diff(dim=0) == 1).all()
            age = ring.written.max() - sample.batch.rewards[0] % 1000
            assert age.max() <= 22
            sampler.update(sample, rng.random(3))

    filled(ring, 500, on_tick)
    assert served == pytest.approx(500 * 3 * 2 / (3 * 4), rel=0.05)
    assert sampler.stats()["reuse"] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("kind", ["fifo", "prioritized"])
def test_what_is_drawn_is_the_sequence_that_the_sample_names(kind):
    ring = make_ring(envs=3)
    if kind == "fifo":
        sampler = FifoSampler(ring, seq_len=4, burn_in=0, batch=3, reuse=1, rng=np.random.default_rng(0))
    else:
        sampler = make_prioritized(ring, batch=3)
    filled(ring, 24, sampler.observe)
    for _ in range(3):
        sample = sampler.next()
        assert sample.batch.rewards[0].tolist() == (1000 * sample.envs + 4 * sample.blocks).tolist()


def test_a_priority_that_comes_late_is_not_given_to_a_newer_sequence():
    """The learner stalls while the ring goes round: the leaves of its sequences stand for others by then."""
    ring = make_ring(envs=2, capacity=40)
    sampler = make_prioritized(ring)

    def priorities():
        return sampler.tree.get(np.arange(sampler.tree.capacity))

    filled(ring, 24, sampler.observe)  # blocks 0 to 5
    late = sampler.next()
    filled(ring, 40, sampler.observe)  # once round: blocks 10 to 15 have their leaves
    before = priorities()
    sampler.update(late, np.full(8, 100.0))
    np.testing.assert_array_equal(priorities(), before)
    # In one sample, of a sequence that is gone and one that is there, the second alone gets its priority.
    env, block = np.array([1, 1]), np.array([3, 13])
    sampler.update(Sample(None, None, env, block), np.array([100.0, 200.0]))
    changed = np.flatnonzero(priorities() != before)
    assert changed.tolist() == [10 + 3] and priorities()[changed[0]] == pytest.approx(200.0**0.9)


def test_prioritized_waits_for_its_least_fill():
    ring = make_ring(envs=5, capacity=100)
    sampler = make_prioritized(ring, min_fill=200)
    filled(ring, 36, sampler.observe)
    assert not sampler.ready()
    filled(ring, 24, sampler.observe)
    assert sampler.ready()


@pytest.mark.parametrize("kind", ["fifo", "prioritized"])
def test_sampler_state_round_trip(kind):
    ring = make_ring()

    def make():
        if kind == "fifo":
            return FifoSampler(ring, seq_len=4, burn_in=0, batch=7, reuse=2, rng=np.random.default_rng(0))
        return make_prioritized(ring)

    one, other = make(), make()
    filled(ring, 9, one.observe)
    one.next()
    other.load_state_dict(one.state_dict())
    a, b = one.next(), other.next()
    for x, y in zip(a.batch, b.batch, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_a_sequence_waits_for_its_last_observation():
    """A cut completes a slot before the next one has its observation: what bootstraps the sequence is not there yet."""
    ring = Ring(RingShape(12, 1, (1,), torch.float32, 1, 0, 2))
    sampler = FifoSampler(ring, seq_len=2, burn_in=0, batch=1, reuse=1, rng=np.random.default_rng(0))
    envs, no, one = np.arange(1), torch.zeros(1, dtype=torch.bool), torch.ones(1)
    ring.open(envs, one[:, None], ~no, None)
    ring.close(envs, Transitions(one.long(), one, one, no, no, 0))
    ring.open(envs, one[:, None], no, None)
    ring.cut(0)
    sampler.observe()
    assert ring.written[0] == 2 and not sampler.ready()
    ring.open(envs, one[:, None], ~no, None)
    sampler.observe()
    assert sampler.ready()
