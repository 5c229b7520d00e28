"""A lost life is terminal to the learner, and to nobody else: returns, episodes and frames go on."""

import numpy as np
import pytest
import torch
from tests.support.small import small_config

from casa.actions import ActionSpec
from casa.engines.build import build_system
from casa.engines.loops import LOOPS
from casa.envs.types import EnvSpec, StepBatch

GAMMA = 0.8


class TwoLives:
    """State 0 gives 1 and costs a life, state 1 gives 2 and ends the episode; the next step resets."""

    def __init__(self, num_envs, told):
        two = ActionSpec.discrete(2)
        self.spec = EnvSpec("lives", num_envs, (2,), np.dtype(np.float32), two, 1, "vector", None, 1, "native")
        self.told = told

    def reset(self, seed=None):
        self.state = np.arange(self.spec.num_envs) % 2  # 0, 1, or 2: over
        return self.observe()

    def observe(self):
        return np.eye(3, 2, dtype=np.float32)[self.state]

    def send(self, actions):
        pass

    def recv(self):
        lost, ended, dummy = (self.state == i for i in range(3))
        rewards = np.array([1, 2, 0], np.float32)[self.state]
        self.state = (self.state + 1) % 3
        no = np.zeros_like(ended)
        return StepBatch(self.observe(), rewards, ended, no, dummy, {}, None, lost if self.told else None)

    def close(self):
        pass


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("recipe", ["casa", "ppo", "r2d2-casa"])
def test_no_value_is_carried_across_a_lost_life(recipe, told):
    changes = {"agent.discount": GAMMA, "agent.value_rescale": False, "env.num_envs": 32, "data.batch": 32}
    config = small_config(recipe, **changes, steps=32 * 400)
    system = build_system(config, env_factory=lambda _, count, seed: TwoLives(count, told))
    system.begin()
    scores = [episode.score for progress in LOOPS["sync"](system) for episode in progress.episodes]
    assert set(scores[32:]) == {3.0}  # the first ones may have begun in state 1
    with torch.no_grad():
        out, _ = system.learner.network(torch.eye(2)[None])
    value = out.mean_q() if recipe == "r2d2-casa" else out.v
    assert value[0].tolist() == pytest.approx([1.0 if told else 1 + GAMMA * 2, 2.0], abs=0.15)


def test_the_returns_spread_is_that_of_single_lives():
    """With terminal lives a return is 1 or 2, never 2 + 0.8."""
    stds = []
    for told in (True, False):
        config = small_config("casa", **{"agent.reward_scale": "return", "env.num_envs": 32, "steps": 32 * 40})
        system = build_system(config, env_factory=lambda _, count, seed, told=told: TwoLives(count, told))
        system.begin()
        for _ in LOOPS["sync"](system):
            pass
        stds.append(system.actors[0].scale.std)
    assert stds[0] == pytest.approx(0.5, abs=0.02) and stds[1] == pytest.approx(0.9, abs=0.05)
