"""The ring against a slow twin: plain lists per environment, under random episodes and reset modes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from casa.rollout.ring import Ring, RingShape, Transitions


class Twin:
    """Every slot ever written, per environment, as plain dictionaries."""

    def __init__(self, envs):
        self.slots = [[] for _ in range(envs)]

    def stack(self, env, slot, depth):
        """The last `depth` frames of the episode up to `slot`, zeros before its first."""
        frames, at = [], slot
        zero = np.zeros_like(self.slots[env][slot]["frame"])
        while len(frames) < depth:
            frames.append(self.slots[env][at]["frame"] if at is not None else zero)
            if at is not None:
                at = None if self.slots[env][at]["start"] else at - 1
        return np.stack(frames[::-1])


def drive(seed, envs, ticks, capacity, same_step, stack=3, state_every=4):
    """Random episodes through a ring and its twin; the twin keeps what the ring forgets."""
    rng = np.random.default_rng(seed)
    ring = Ring(RingShape(capacity, envs, (2,), torch.uint8, stack, 1, state_every))
    twin = Twin(envs)
    everyone = np.arange(envs)

    def open_slots(env_ids, starts):
        frames = rng.integers(1, 255, (len(env_ids), 2)).astype(np.uint8)
        states = rng.normal(size=(len(env_ids), 1)).astype(np.float32)
        ring.open(env_ids, torch.from_numpy(frames), torch.as_tensor(starts), torch.from_numpy(states))
        for i, env in enumerate(env_ids):
            slot = {"frame": frames[i], "start": bool(starts[i]), "state": states[i], "valid": True}
            twin.slots[env].append(slot)

    open_slots(everyone, np.ones(envs, bool))
    ended = np.zeros(envs, bool)  # the open slot holds a final observation (next-step mode)
    for tick in range(ticks):
        actions, rewards = rng.integers(0, 5, envs), rng.normal(size=envs).astype(np.float32)
        terminated = (rng.random(envs) < 0.15) & ~ended
        truncated = (rng.random(envs) < 0.1) & ~ended & ~terminated
        rewards[ended] = 0
        facts = (torch.from_numpy(x) for x in (actions, rewards, rewards, terminated, truncated))
        ring.close(everyone, Transitions(*facts, tick))
        for env in everyone:
            slot = {"action": actions[env], "reward": rewards[env], "version": tick, "valid": not ended[env]}
            twin.slots[env][-1].update(slot, terminated=terminated[env], truncated=truncated[env])
        ends = terminated | truncated
        if same_step:
            which = np.flatnonzero(ends)
            if len(which):
                open_slots(which, np.zeros(len(which), bool))
                ring.close_without_transition(which, tick)
                for env in which:
                    nothing = {"action": 0, "reward": 0.0, "version": tick, "valid": False}
                    twin.slots[env][-1].update(nothing, terminated=False, truncated=False)
            open_slots(everyone, ends)
        else:
            open_slots(everyone, ended)
            ended = ends
    return ring, twin


@given(seed=st.integers(0, 10_000), same_step=st.booleans(), ticks=st.integers(12, 60))
@settings(max_examples=40, deadline=None)
def test_ring_equals_its_slow_twin(seed, same_step, ticks):
    length, stack, state_every = 5, 3, 4
    ring, twin = drive(seed, envs=3, ticks=ticks, capacity=20, same_step=same_step, stack=stack)
    oldest = ring.oldest()
    for env in range(3):
        assert ring.written[env] == len(twin.slots[env]) - 1
        for slot in range(oldest[env], ring.written[env] - length + 1):
            batch = ring.gather(np.array([env]), np.array([slot]), length)
            for t in range(length + 1):
                expected = twin.stack(env, slot + t, stack)
                np.testing.assert_array_equal(batch.obs[t, 0].numpy(), expected)
                assert batch.starts[t, 0] == twin.slots[env][slot + t]["start"]
            for t in range(length):
                fact = twin.slots[env][slot + t]
                assert batch.actions[t, 0] == fact["action"]
                assert batch.rewards[t, 0].item() == pytest.approx(float(fact["reward"]))
                assert batch.terminated[t, 0] == fact["terminated"]
                assert batch.truncated[t, 0] == fact["truncated"]
                assert batch.valid[t, 0] == fact["valid"]
                assert batch.versions[t, 0] == fact["version"]
            if slot % state_every == 0:
                assert batch.state[0].item() == twin.slots[env][slot]["state"].item()


def test_an_end_is_followed_by_its_final_observation():
    """In both reset modes: end, then a slot without a transition, then a start; nothing else is invalid."""
    for same_step in (False, True):
        ring, _ = drive(3, envs=2, ticks=30, capacity=40, same_step=same_step)
        batch = ring.gather(np.arange(2), np.zeros(2, np.int64), int(ring.written.min()))
        ends = batch.terminated | batch.truncated
        assert ends.any()
        torch.testing.assert_close(batch.valid[1:], ~ends[:-1])
        torch.testing.assert_close(batch.starts[2:][ends[:-1]], torch.ones_like(batch.starts[2:][ends[:-1]]))


def test_cut_truncates_what_runs_and_nothing_else():
    ring = Ring(RingShape(16, 3, (1,), torch.float32, 1, 0, 4))
    envs, one = np.arange(3), torch.ones(3)
    no = torch.zeros(3, dtype=torch.bool)
    ring.open(envs, one[:, None], ~no, None)
    # Environment 0 runs on, 1 has just terminated (its final observation is open), 2 has just started anew.
    terminated, truncated = torch.tensor([False, True, False]), torch.tensor([False, False, True])
    ring.close(envs, Transitions(one.long(), one, one, terminated, truncated, 0))
    ring.open(envs, one[:, None], no, None)
    ring.close(envs[2:], Transitions(one[:1].long(), one[:1], one[:1], no[:1], no[:1], 0))
    ring.open(envs[2:], one[:1, None], ~no[:1], None)
    ring.cut(0)
    ring.open(envs, one[:, None], ~no, None)
    assert ring.truncated[0].tolist() == [True, False, True]
    assert ring.terminated[0].tolist() == [False, True, False]
    batch = ring.gather(envs[:2], np.zeros(2, np.int64), 2)
    assert batch.valid.tolist() == [[True, True], [False, False]]
    third = ring.gather(envs[2:], np.zeros(1, np.int64), 3)
    assert third.valid[:, 0].tolist() == [True, False, False]


def test_cut_leaves_an_environment_alone_that_has_not_come_back_from_its_reset():
    ring = Ring(RingShape(16, 2, (1,), torch.float32, 1, 0, 4))
    one, no = torch.ones(2), torch.zeros(2, dtype=torch.bool)
    for envs in ([0, 1], [0, 1], [0]):
        n = len(envs)
        ring.open(np.array(envs), one[:n, None], no[:n], None)
        if envs != [0]:
            ring.close(np.array(envs), Transitions(one[:n].long(), one[:n], one[:n], no[:n], no[:n], 0))
    ring.cut(0)
    assert ring.written.tolist() == [3, 2]
    assert ring.truncated[:3].tolist() == [[False, False], [True, False], [False, False]]


def test_state_dict_round_trip():
    ring, _ = drive(1, envs=2, ticks=25, capacity=16, same_step=True)
    other = Ring(ring.shape)
    other.load_state_dict({name: tensor.clone() for name, tensor in ring.state_dict().items()})
    a, b = (r.gather(np.arange(2), ring.oldest(), 4) for r in (ring, other))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert (other.opened == ring.opened).all() and (ring.opened == ring.written + 1).all()
    # Of a time when every slot was closed before it was saved.
    other.load_state_dict({name: tensor for name, tensor in ring.state_dict().items() if name != "opened"})
    assert (other.opened == ring.written).all()
    # As earlier versions named it.
    named = {"begun" if name == "opened" else name: tensor for name, tensor in ring.state_dict().items()}
    other.load_state_dict(named)
    assert (other.opened == ring.opened).all()


def test_memory_estimate_is_what_is_allocated():
    shape = RingShape(20, 3, (84, 84), torch.uint8, 4, 16, 8)
    ring = Ring(shape)
    held = sum(t.numel() * t.itemsize for name, t in ring.state_dict().items() if name not in ("written", "opened"))
    assert held == shape.bytes
    with_policy = replace(shape, policy_size=5)
    assert with_policy.bytes == shape.bytes + 20 * 3 * 5 * 4
    assert Ring(with_policy).policy.shape == (20, 3, 5)


def test_a_checkpoint_without_policies_fits_a_ring_that_needs_none():
    """As earlier versions saved it. A ring that stores them cannot do without."""
    ring = Ring(RingShape(12, 1, (1,), torch.float32, 1, 0, 2))
    saved = {name: tensor for name, tensor in ring.state_dict().items() if name != "policy"}
    ring.load_state_dict(saved)
    with pytest.raises(KeyError):
        Ring(replace(ring.shape, policy_size=2)).load_state_dict(saved)
