"""Environments that reset within their step write more slots than others: nothing is lost, and nobody waits forever."""

import threading

import numpy as np
import pytest
import torch
from tests.support.small import small_config

from casa.actions import ActionSpec
from casa.engines.build import build_system
from casa.engines.loops import LOOPS
from casa.envs.types import EnvSpec, StepBatch


class Uneven:
    """Environment 0 ends in every step and resets at once; the others never end. A reward counts its environment."""

    def __init__(self, num_envs):
        two = ActionSpec.discrete(2)
        self.spec = EnvSpec("uneven", num_envs, (2,), np.dtype(np.float32), two, 1, "vector", None, 1, "native")

    def reset(self, seed=None):
        self.steps = 0
        return self.observe()

    def observe(self):
        return np.stack([np.arange(self.spec.num_envs), np.full(self.spec.num_envs, self.steps)], 1).astype(np.float32)

    def send(self, actions):
        self.steps += 1

    def recv(self):
        count = self.spec.num_envs
        rewards = np.arange(count, dtype=np.float32) + 100 * self.steps
        ends = np.arange(count) == 0
        final = {0: np.array([0, -self.steps], np.float32)}
        none = np.zeros(count, bool)
        return StepBatch(self.observe(), rewards, ends, none, none, final)

    def close(self):
        pass


def make(recipe="casa", **changes):
    changes = {"env.num_envs": 4, "data.seq_len": 4, "data.batch": 32, "data.reuse": 1, "steps": 4 * 300, **changes}
    system = build_system(small_config(recipe, **changes), env_factory=lambda _, count, seed: Uneven(count))
    system.begin()
    return system


def check(batch):
    """Each sequence is one piece of one environment's life, and says so in all its parts."""
    for b in range(batch.rewards.shape[1]):
        env, seen = batch.obs[:, b].unbind(1)
        assert (env == env[0]).all()
        # Environment 0 sees s, then the final -(s + 1), then s + 1; the others count on.
        following = torch.where(seen < 0, -seen, -(seen + 1)) if env[0] == 0 else seen + 1
        assert (seen[1:] == following[:-1]).all(), seen
        final = (seen < 0)[:-1]
        assert (batch.valid[:, b] == ~final).all()
        assert (batch.terminated[:, b] == ((env[0] == 0) & ~final)).all()
        assert (batch.rewards[:, b] == torch.where(final, 0, env[0] + 100 * (seen[:-1] + 1))).all()


@pytest.mark.parametrize(("seq_len", "batch", "reuse"), [(4, 8, 1), (4, 32, 1), (4, 96, 3), (1, 32, 1), (2, 7, 2)])
def test_sync_overwrites_nothing_that_is_owed(seq_len, batch, reuse):
    system = make(**{"data.batch": batch, "data.seq_len": seq_len, "data.reuse": reuse})
    draw, batches = system.sampler.next, []

    def drawn():
        sample = draw()
        check(sample.batch)
        batches.append(sample)
        return sample

    system.sampler.next = drawn
    for _ in LOOPS["sync"](system):
        assert system.sampler.room()
    assert len(batches) >= 3


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("burn_in", "seq_len", "batch", "reuse"), [(0, 4, 8, 4), (4, 5, 32, 2), (0, 1, 96, 8)])
def test_mixed_data_overwrites_nothing_that_is_new_or_drawn(burn_in, seq_len, batch, reuse, mode):
    """With the smallest replay; each sequence is new exactly once, whichever environment it comes from."""
    changes = {"data.kind": "mixed", "data.burn_in": burn_in, "data.seq_len": seq_len, "data.min_fill": 0}
    changes |= {"data.batch": batch, "data.reuse": reuse, "data.replay_frames": 4 * (burn_in + seq_len + 1)}
    system = make(**changes)
    draw, new = system.sampler.next, []

    def drawn():
        sample = draw()
        check(sample.batch)
        assert len(sample.envs) == batch
        new.extend(zip(sample.envs[: batch // reuse].tolist(), sample.blocks[: batch // reuse].tolist(), strict=True))
        return sample

    system.sampler.next = drawn
    for _ in LOOPS[mode](system):
        if mode == "sync":
            assert system.sampler.room()
    assert len(new) == len(set(new)) and len(new) + len(system.sampler.queue) == system.sampler.arrived
    assert system.sampler.stats()["reuse"] == pytest.approx(reuse, rel=0.1)
    assert system.sampler.learned / batch > 15


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("burn_in", "seq_len"), [(4, 5), (0, 4), (0, 1)])
def test_the_smallest_replay_always_holds_a_whole_sequence(burn_in, seq_len, mode):
    changes = {"data.burn_in": burn_in, "data.seq_len": seq_len, "data.batch": 7, "data.min_fill": 0}
    system = make("r2d2", **changes, **{"data.replay_frames": 4 * (burn_in + seq_len + 1), "data.reuse": 9})
    draw, batches = system.sampler.next, []

    def drawn():
        sample = draw()
        check(sample.batch)
        batches.append(sample)
        return sample

    system.sampler.next = drawn
    for _ in LOOPS[mode](system):
        if system.steps > 100:
            assert system.sampler.tree.total > 0
    assert len(batches) > 100


@pytest.mark.parametrize(("seq_len", "batch"), [(4, 32), (4, 96), (1, 32)])
def test_async_comes_to_its_end(seq_len, batch):
    system = make(**{"data.batch": batch, "data.seq_len": seq_len})
    thread = threading.Thread(target=lambda: list(LOOPS["async"](system)), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "actor and learner wait for each other"
    assert system.steps == 4 * 300
