"""Batches, learners and weights for the tests of a learner step."""

import numpy as np
import torch

from casa.actions import ActionSpec
from casa.learn.learner import Learner
from casa.nn import Network
from casa.rollout.ring import Batch
from tests.support.small import GAUSSIAN, small_config

OBS, ACTIONS = 3, 4
BOX = ActionSpec.box([-1] * 2, [2] * 2)
"""The actions of a learner whose head is Gaussian."""


def random_batch(length, size, state_size=0, seed=0, ends=0.2, box=False):
    """Sequences of the canonical stream: an end is followed by its final observation, and that by a start."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, length, size), bool)
    starts = np.zeros((length + 1, size), bool)
    for b in range(size):
        for t in range(length):
            if not starts[t, b] and t and (terminated[t - 1, b] or truncated[t - 1, b]):
                starts[t + 1, b] = True  # slot t holds a final observation
            elif rng.random() < ends:
                (terminated if rng.random() < 0.5 else truncated)[t, b] = True
    valid = ~starts[1:]

    def normal(*shape):
        return torch.as_tensor(rng.normal(size=shape), dtype=torch.float32)

    actions = normal(length, size, 2) if box else torch.as_tensor(rng.integers(ACTIONS, size=(length, size)))
    return Batch(
        obs=normal(length + 1, size, OBS),
        starts=torch.as_tensor(starts),
        actions=actions,
        log_mu=-normal(length, size).abs() - 0.5,
        rewards=normal(length, size) * torch.as_tensor(valid),
        terminated=torch.as_tensor(terminated),
        truncated=torch.as_tensor(truncated),
        valid=torch.as_tensor(valid),
        versions=torch.zeros(length, size, dtype=torch.int32),
        policy=torch.log_softmax(normal(length, size, ACTIONS), -1),
        state=normal(size, state_size),
    )


def make_learner(recipe, seed=0, lstm=0, **changes):
    config = small_config(recipe, **{"net.lstm": lstm, "net.hidden": 16, **changes})
    torch.manual_seed(seed)
    agent = config.agent
    actions = BOX if agent.head in GAUSSIAN else ACTIONS
    noise = {"noise": config.net.noise}
    network = Network((OBS,), actions, backbone="mlp", lstm=lstm, head=agent.head, tau=agent.tau, hidden=16, **noise)
    return Learner(network, config)


def weights_of(module):
    return [p.detach().clone() for p in module.parameters()]


def same(before, module):
    return all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
