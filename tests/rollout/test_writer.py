"""One actor's writes against a slow twin: the stacks that it acts on, and the slots that it leaves in the ring."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from casa.envs.stacks import push
from casa.envs.types import StepBatch
from casa.rollout.ring import Ring, RingShape
from casa.rollout.stacks import FrameStacks
from casa.rollout.writer import StepWriter

CPU = torch.device("cpu")


@given(seed=st.integers(0, 10_000), stack=st.integers(1, 5), pushes=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_stacks_are_those_of_the_environments(seed, stack, pushes):
    """Of any environments at a time, in any order; zeros before an episode's first frame, as ALE has them."""
    rng = np.random.default_rng(seed)
    count, frame = 5, (2, 3)
    stacks = FrameStacks(count, stack, frame, torch.uint8, CPU)
    expected = np.zeros((count, stack, *frame), np.uint8)
    for i in range(pushes):
        ids = rng.permutation(count)[: count if i == 0 else rng.integers(1, count + 1)]
        frames = rng.integers(1, 256, (len(ids), *frame), dtype=np.uint8)
        starts = np.ones(len(ids), bool) if i == 0 else rng.random(len(ids)) < 0.2
        expected[ids] = push(expected[ids], frames, starts)
        stacks.push(torch.as_tensor(ids), torch.as_tensor(frames), torch.as_tensor(starts))
        seen = stacks.observations(torch.arange(count)).numpy()
        np.testing.assert_array_equal(seen, expected[:, 0] if stack == 1 else expected)


class Episodes:
    """Random episodes in groups of any environments, which reset within their step or in the step after."""

    def __init__(self, seed, count, stack, same_step):
        self.rng, self.count, self.same_step = np.random.default_rng(seed), count, same_step
        self.stacks = np.zeros((count, stack, 2), np.uint8)
        self.ended = np.zeros(count, bool)

    def reset(self):
        return self._observe(np.arange(self.count), np.ones(self.count, bool))

    def step(self, ids):
        rng, n = self.rng, len(ids)
        dummy = self.ended[ids]
        rewards = np.where(dummy, 0, rng.normal(size=n)).astype(np.float32)
        terminated = (rng.random(n) < 0.15) & ~dummy
        truncated = (rng.random(n) < 0.1) & ~dummy & ~terminated
        over, final = terminated | truncated, {}
        lost = (rng.random(n) < 0.1) & ~dummy & ~over  # lives: terminal to the learner, and the episode goes on
        if self.same_step:
            last = self._observe(ids, np.zeros(n, bool))
            final = {int(i): last[i].copy() for i in np.flatnonzero(over)}
            if over.any():
                last[over] = self._observe(ids[over], np.ones(over.sum(), bool))
            return StepBatch(last, rewards, terminated, truncated, dummy, final, None, lost)
        self.ended[ids] = over
        return StepBatch(self._observe(ids, dummy), rewards, terminated, truncated, dummy, {}, None, lost)

    def _observe(self, ids, starts):
        frames = self.rng.integers(1, 256, (len(ids), 2), dtype=np.uint8)
        self.stacks[ids] = push(self.stacks[ids], frames, starts)
        return self.stacks[ids].copy()


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize(("group", "same_step"), [(4, False), (4, True), (2, False)])
def test_what_is_acted_on_and_what_is_kept_are_what_was_shown(group, same_step, stack):
    """The ring's columns are not the actor's own numbers; environments that end within a step write two slots."""
    count, columns = 4, np.array([5, 1, 0, 3])
    ring = Ring(RingShape(400, 6, (2,), torch.uint8, stack, 1, 4))
    actions, log_mu = torch.zeros(count, dtype=torch.int64), torch.zeros(count)
    state = torch.zeros(count, 1)
    writer = StepWriter(ring, columns, group, actions, log_mu, state)
    env = Episodes(7, count, stack, same_step)
    slots = [[] for _ in range(count)]  # by environment: what its slots should be

    def shown(obs):
        return obs if stack > 1 else obs[:, 0]

    def assert_seen(ids, obs, starts):
        assert writer.env_ids.tolist() == ids.tolist() and writer.starts.tolist() == starts.tolist()
        np.testing.assert_array_equal(writer.observations().numpy(), shown(obs))

    obs, first = env.reset(), np.ones(group, bool)
    for begin in range(0, count, group):
        ids = np.arange(begin, begin + group)
        writer.reset(ids, obs[ids] if stack > 1 else obs[ids, 0])
        assert_seen(ids, obs[ids], first)
        for i in ids:
            slots[i].append({"obs": shown(obs)[i], "start": True})
    for tick in range(60):
        ids = np.arange(count) if group == count else env.rng.permutation(count)[:group]
        actions[ids], log_mu[ids] = torch.as_tensor(env.rng.integers(0, 9, group)), -torch.rand(group)
        state[ids] = torch.rand(group, 1)
        step = env.step(ids)
        starts = step.dummy.copy()
        starts[list(step.final)] = True
        given = step._replace(obs=shown(step.obs), final={i: shown(x[None])[0] for i, x in step.final.items()})
        writer.step(ids, given, starts, np.ones(group, bool), np.full(group, tick))
        assert_seen(ids, step.obs, starts)
        for row, i in enumerate(ids):
            terminal = step.terminated[row] or step.life_lost[row]
            facts = {"reward": step.rewards[row], "terminated": terminal, "truncated": step.truncated[row]}
            slots[i][-1].update(facts, action=int(actions[i]), log_mu=float(log_mu[i]), version=tick)
            if row in step.final:
                nothing = {"reward": 0, "terminated": False, "truncated": False, "action": 0, "log_mu": 0.0}
                slots[i].append({"obs": shown(step.final[row][None])[0], "start": False, "version": tick, **nothing})
            slots[i].append({"obs": shown(step.obs)[row], "start": bool(starts[row])})
    assert sum(slot["start"] for life in slots for slot in life) > 2 * count  # episodes ended
    for i, column in enumerate(columns):
        length = len(slots[i]) - 1
        assert ring.written[column] == length and ring.opened[column] == length + 1
        batch = ring.gather(np.array([column]), np.array([0]), length)
        np.testing.assert_array_equal(batch.obs[:, 0].numpy(), np.stack([slot["obs"] for slot in slots[i]]))
        assert batch.starts[:, 0].tolist() == [slot["start"] for slot in slots[i]]
        for name, key in (("actions", "action"), ("versions", "version"), ("terminated", "terminated")):
            assert getattr(batch, name)[:, 0].tolist() == [slot[key] for slot in slots[i][:-1]]
        for name, key in (("rewards", "reward"), ("log_mu", "log_mu"), ("truncated", "truncated")):
            expected = [float(slot[key]) for slot in slots[i][:-1]]
            assert getattr(batch, name)[:, 0].float().tolist() == pytest.approx(expected)
    untouched = np.setdiff1d(np.arange(6), columns)
    assert not ring.written[untouched].any() and not ring.opened[untouched].any()
    assert np.array_equal(ring._cursor.numpy(), ring.written)


def test_a_slot_that_nothing_was_sent_for_stays_open():
    """What `reset` did not give yet comes with the first `recv`: it opens a slot and closes none."""
    ring = Ring(RingShape(16, 2, (1,), torch.float32, 1, 0, 4))
    writer = StepWriter(ring, np.arange(2), 1, torch.ones(2, dtype=torch.int64), torch.zeros(2), torch.zeros(2, 0))
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    writer.reset(np.array([0]), np.array([[10.0]], np.float32))
    assert ring.opened.tolist() == [1, 0]

    def step(env, obs, reward, first):
        batch = StepBatch(np.array([[obs]], np.float32), np.array([reward], np.float32), no, no, no, {})
        writer.step(np.array([env]), batch, yes if first else no, no if first else yes, np.zeros(1, np.int32))

    step(1, 20.0, 0.0, first=True)
    assert (ring.written.tolist(), ring.opened.tolist()) == ([0, 0], [1, 1])
    step(0, 11.0, 0.5, first=False)
    step(1, 21.0, 0.7, first=False)
    assert (ring.written.tolist(), ring.opened.tolist()) == ([1, 1], [2, 2])
    batch = ring.gather(np.arange(2), np.zeros(2, np.int64), 1)
    assert batch.obs[:, :, 0].tolist() == [[10.0, 20.0], [11.0, 21.0]]
    assert batch.rewards[0].tolist() == pytest.approx([0.5, 0.7]) and batch.starts[0].tolist() == [True, True]
