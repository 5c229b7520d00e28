"""Reuse is exact, sequences are whole, and prioritized draws follow the priorities of live sequences."""

import numpy as np
import pytest
import torch

from casa.rollout.ring import Ring, RingShape
from casa.rollout.samplers import FifoSampler, PrioritizedSampler


def filled(ring, ticks, on_tick):
    """Write ticks whose reward is the absolute slot + 1000 x environment, so that batches can be told apart."""
    envs = np.arange(ring.shape.num_envs)
    no = torch.zeros(len(envs), dtype=torch.bool)

    def begin():
        ring.begin(envs, torch.zeros(len(envs), 1), no, None)

    if ring.written[0] == 0:
        begin()
    for _ in range(ticks):
        rewards = torch.from_numpy(ring.written + 1000.0 * envs).float()
        ring.complete(envs, no.long(), rewards, rewards, no, no, 0)
        begin()
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


def test_prioritized_draws_follow_priorities_and_weights_correct_them():
    ring = make_ring(envs=4, capacity=400)
    sampler = make_prioritized(ring)
    filled(ring, 24, sampler.observe)  # 24 sequences
    size = {}
    for leaf in np.flatnonzero(sampler.block_of >= 0):
        size[leaf] = 1.0 + leaf % 7
    leaves = np.array(list(size))
    sampler.update(leaves, torch.tensor([size[leaf] for leaf in leaves]))
    counts = dict.fromkeys(leaves.tolist(), 0)
    for _ in range(4000):
        sampler.credit = 1.0
        sample = sampler.next()
        for leaf in sample.leaves.tolist():
            counts[leaf] += 1
    drawn = np.array([size[leaf] ** 0.9 for leaf in sample.leaves])
    np.testing.assert_allclose(sample.weights, (drawn / drawn.min()) ** -0.6, rtol=1e-5)
    powered = np.array([size[leaf] ** 0.9 for leaf in leaves])
    expected = powered / powered.sum()
    observed = np.array([counts[leaf] for leaf in leaves.tolist()]) / 32_000
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
            sampler.update(sample.leaves, torch.from_numpy(rng.random(3)))

    filled(ring, 500, on_tick)
    assert served == pytest.approx(500 * 3 * 2 / (3 * 4), rel=0.05)
    assert sampler.stats()["reuse"] == pytest.approx(2, rel=0.05)


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
    ring.begin(envs, one[:, None], ~no, None)
    ring.complete(envs, one.long(), one, one, no, no, 0)
    ring.begin(envs, one[:, None], no, None)
    ring.cut(0)
    sampler.observe()
    assert ring.written[0] == 2 and not sampler.ready()
    ring.begin(envs, one[:, None], ~no, None)
    sampler.observe()
    assert sampler.ready()
