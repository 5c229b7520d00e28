"""Slots that travel from a worker's small ring to the learner's are those that a single ring would hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from casa.rollout.ring import Ring, RingShape, Transitions

EVERY, LENGTH = 4, 7
SHAPE = RingShape(24, 5, (2,), torch.float32, stack=3, state_size=6, state_every=EVERY, policy_size=3)
COLUMNS = (np.array([0, 1]), np.array([2, 3, 4]))


def transitions(rng, count):
    def flags():
        return torch.as_tensor(rng.random(count) < 0.2)

    numbers = torch.as_tensor(rng.random((2, count)), dtype=torch.float32)
    actions = torch.as_tensor(rng.integers(0, 9, count))
    policy = torch.as_tensor(rng.random((count, 3)), dtype=torch.float32)
    return Transitions(actions, *numbers, flags(), flags(), int(rng.integers(99)), policy)


def test_a_ring_filled_by_messages_equals_the_ring_of_one_process():
    rng = np.random.default_rng(0)
    whole, learner = Ring(SHAPE), Ring(SHAPE)
    workers = [Ring(replace(SHAPE, num_envs=len(columns), capacity=16)) for columns in COLUMNS]
    sent = [np.zeros(len(columns), np.int64) for columns in COLUMNS]
    for step in range(200):
        for i, (columns, worker) in enumerate(zip(COLUMNS, workers, strict=True)):
            mine = np.flatnonzero((rng.random(len(columns)) < 0.7) | (step == 0))
            closing = mine[worker.opened[mine] > worker.written[mine]]
            facts = transitions(rng, len(closing))
            worker.close(closing, facts)
            whole.close(columns[closing], facts)
            frames, starts = torch.as_tensor(rng.random((len(mine), 2))), torch.as_tensor(rng.random(len(mine)) < 0.3)
            state = torch.as_tensor(rng.random((len(mine), 6)), dtype=torch.float32)
            worker.open(mine, frames.float(), starts, state)
            whole.open(columns[mine], frames.float(), starts, state)
            if rng.random() < 0.3 or (worker.written - sent[i]).max() > 5:
                slots = worker.take_since(sent[i])
                learner.put(columns, slots)
                sent[i] = slots.written
    for i, columns in enumerate(COLUMNS):
        learner.put(columns, workers[i].take_since(sent[i]))
    assert (learner.written == whole.written).all() and (learner.opened == whole.opened).all()
    first = -(-whole.oldest() // EVERY) * EVERY
    assert (first > 2 * SHAPE.capacity).all()  # every ring was overwritten several times
    envs = np.arange(SHAPE.num_envs)
    for mine, expected in zip(learner.gather(envs, first, LENGTH), whole.gather(envs, first, LENGTH), strict=True):
        assert torch.equal(mine, expected)


def test_a_message_that_does_not_follow_is_refused():
    worker, learner = Ring(SHAPE), Ring(SHAPE)
    envs = np.arange(5)
    worker.open(envs, torch.zeros(5, 2), torch.ones(5, dtype=torch.bool), torch.zeros(5, 6))
    worker.close(envs, transitions(np.random.default_rng(0), 5))
    with pytest.raises(ValueError, match="do not follow"):
        learner.put(envs, worker.take_since(np.ones(5, np.int64)))


def test_a_lost_worker_cuts_its_own_environments():
    ring = Ring(SHAPE)
    envs = np.arange(5)
    for start in (True, False):
        ring.open(envs, torch.zeros(5, 2), torch.full((5,), start), torch.zeros(5, 6))
        if start:
            ring.close(envs, Transitions(*torch.zeros(3, 5), *torch.zeros(2, 5, dtype=torch.bool), 0))
    ring.cut(0, COLUMNS[1])
    assert ring.truncated[0].tolist() == [False, False, True, True, True]
    assert ring.written.tolist() == [1, 1, 2, 2, 2]
