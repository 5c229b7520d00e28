"""Mixed batches: exact shares, every new sequence new once, uniform replay of what is stored, against a slow twin."""

import numpy as np
import pytest
import torch
from tests.rollout.test_samplers import filled, make_ring

from casa.rollout.mixed import MixedSampler
from casa.rollout.samplers import SLOTS_A_STEP


def make_mixed(ring, **changed):
    options = {"seq_len": 4, "burn_in": 0, "batch": 8, "reuse": 4, "replay": 24, "min_fill": 0}
    return MixedSampler(ring, **{**options, **changed}, rng=np.random.default_rng(1))


class Twin:
    """Every sequence that has ever come, as a set: those that are new, and those that a batch may replay."""

    def __init__(self, ring, sampler):
        self.ring, self.sampler = ring, sampler
        self.come, self.new = set(), set()

    def observe(self):
        for env in range(self.ring.shape.num_envs):
            block = 0
            while block * self.sampler.seq_len + self.sampler.length <= self.ring.opened[env] - 1:
                if (env, block) not in self.come:
                    self.come.add((env, block))
                    self.new.add((env, block))
                block += 1

    def replay(self):
        written, capacity = self.ring.written, self.ring.shape.capacity
        return {
            (env, block)
            for env, block in self.come
            if block * self.sampler.seq_len >= written[env] - self.sampler.replay
            and block * self.sampler.seq_len >= written[env] + 1 + SLOTS_A_STEP + 1 - capacity
        }


def pairs(sample):
    return list(zip(sample.envs.tolist(), sample.blocks.tolist(), strict=True))


@pytest.mark.parametrize(
    ("reuse", "batch", "burn_in", "capacity"), [(4, 8, 0, 40), (8, 8, 6, 60), (2, 6, 4, 28), (1, 5, 0, 40)]
)
def test_shares_are_exact_and_every_new_sequence_is_new_once(reuse, batch, burn_in, capacity):
    ring = make_ring(capacity=capacity)
    sampler = make_mixed(ring, reuse=reuse, batch=batch, burn_in=burn_in)
    twin, used, batches = Twin(ring, sampler), [], 0

    def on_tick():
        nonlocal batches
        sampler.observe()
        twin.observe()
        while sampler.ready():
            sample = sampler.next()
            batches += 1
            fresh, replayed = pairs(sample)[: batch // reuse], pairs(sample)[batch // reuse :]
            assert len(replayed) == batch - batch // reuse
            assert set(fresh) <= twin.new, "used as new twice, or never come"
            twin.new -= set(fresh)
            used.extend(fresh)
            assert set(replayed) <= twin.replay()
            assert (sample.batch.rewards.diff(dim=0) == 1).all(), "a sequence must be one piece of one environment"
            assert sample.batch.rewards[0].tolist() == (1000 * sample.envs + 4 * sample.blocks).tolist()
            assert (sample.weights == 1).all() and len(sample.weights) == batch
        assert sampler.room()

    filled(ring, 300, on_tick)
    assert len(used) == len(set(used)) == batches * batch // reuse
    assert len(twin.new) < batch // reuse  # all that came has been used, but for what waits for a whole batch
    assert sampler.stats()["reuse"] == pytest.approx(reuse, rel=0.05)


def test_replayed_sequences_are_uniform_over_what_is_stored():
    """Environments that have come unequally far: each stored sequence has the same chance, new ones too."""
    ring = make_ring(envs=3, capacity=80)
    sampler = make_mixed(ring, replay=36)
    filled(ring, 45, sampler.observe)
    sampler.blocks.done[1] -= 3  # as if this environment's episodes had given fewer sequences
    expected = {(env, block) for env in range(3) for block in range(3, 11 - 3 * (env == 1))}
    drawn, total = {}, 0
    for _ in range(500):
        for pair in map(tuple, sampler._draw(60).tolist()):
            drawn[pair] = drawn.get(pair, 0) + 1
            total += 1
    assert drawn.keys() == expected
    counts = np.array(list(drawn.values()))
    mean = total / len(expected)
    chi2 = ((counts - mean) ** 2 / mean).sum()
    assert chi2 < 45, "of 20 degrees of freedom, exceeded by chance once in 1,000 times"


def test_the_replay_ends_where_it_should():
    ring = make_ring(envs=2, capacity=80)
    sampler = make_mixed(ring, replay=24)
    filled(ring, 41, sampler.observe)
    blocks = {block for _, block in map(tuple, sampler._draw(500).tolist())}
    assert blocks == {5, 6, 7, 8, 9}  # slots 20 to 39, of the last 24: 17 to 40
    stats = sampler.stats()
    assert stats["replay_fill"] == pytest.approx(5 * 4 / 24)
    assert stats["replay_age"] == pytest.approx(2 * np.mean([41 - 4 * block for block in blocks]))


def test_a_new_sequence_holds_the_actor_back_and_a_replayed_one_does_not():
    ring = make_ring(capacity=16)
    sampler = make_mixed(ring, batch=20, reuse=4, replay=12)
    ticks = 0
    while sampler.room():
        filled(ring, 1, sampler.observe)
        ticks += 1
        assert ticks < 20, "room() never said no"
    assert not sampler.fits(16) and sampler.fits(1)
    first = pairs(sampler.next())[:5]
    assert {block for _, block in first} == {0}
    while sampler.ready():
        sampler.next()
    sampler.queue.clear()
    assert sampler.fits(16) and sampler.room()


def test_the_step_in_flight_overwrites_nothing_that_is_drawn():
    """The actor writes while the learner gathers: two more slots may be gone at any time."""
    ring = make_ring(envs=3, capacity=20)
    sampler = make_mixed(ring, batch=6, reuse=3, replay=20)

    def on_tick():
        sampler.observe()
        while sampler.ready():
            sample = sampler.next()
            oldest = ring.oldest(ahead=SLOTS_A_STEP)[sample.envs]
            assert (sample.blocks * 4 >= oldest)[2:].all()

    filled(ring, 200, on_tick)
    assert sampler.learned > 200


def test_before_the_least_fill_sequences_are_only_replayed():
    ring = make_ring(envs=5, capacity=100)
    sampler = make_mixed(ring, min_fill=200, replay=80)
    filled(ring, 36, sampler.observe)
    assert not sampler.ready() and sampler.room() and sampler.arrived == 45
    filled(ring, 4, sampler.observe)
    assert sampler.ready()
    sample = sampler.next()
    assert set(sample.blocks[:2]) == {9}
    assert {block for _, block in map(tuple, sampler._draw(500).tolist())} == set(range(10))


def test_state_round_trip():
    ring = make_ring()
    one, other = make_mixed(ring), make_mixed(ring)
    filled(ring, 9, one.observe)
    one.next()
    other.load_state_dict(one.state_dict())
    assert other.stats() == one.stats()
    for _ in range(2):
        a, b = one.next(), other.next()
        assert pairs(a) == pairs(b)
        for x, y in zip(a.batch, b.batch, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
