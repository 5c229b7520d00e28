"""Several environments in each of a few processes: the data of one process, to the bit."""

import gc
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from tests.support.env_cases import Count, Screen, canonical, idle

from casa.envs import EnvConfig, make_env
from casa.envs import source as source_module


class Option(Count):
    """One of seven numbers."""

    def __init__(self):
        super().__init__()
        self.observation_space = Discrete(7)

    def observe(self):
        return self.age % 7


def vec(make, count, vectorization):
    return make_env(make, count, config=EnvConfig(vectorization=vectorization))


@pytest.mark.parametrize("make", [Count, Screen, Option])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_pool_gives_the_stream_of_one_process(make, processes, monkeypatch):
    monkeypatch.setattr(source_module, "cores", lambda: processes)
    here, there = vec(make, 5, "sync"), vec(make, 5, "pool")
    assert len(there._envs.processes) == processes
    stream = canonical(here, 30)
    assert canonical(there, 30) == stream and canonical(there, 30) == stream
    assert sum(slot[2] or slot[3] for slots in stream for slot in slots) > 5  # episodes ended on the way
    there.close()
    assert not any(process.is_alive() for process in there._envs.processes)


def test_actions_of_several_spaces_reach_the_pool():
    class Parts(gym.Env):
        observation_space = Box(-9, 9, (2,))
        action_space = Dict({"push": Box(-2, 2, (1,)), "turn": Discrete(3)})

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.array([action["push"][0], action["turn"]], np.float32), 0.0, False, False, {}

    actions = np.array([[0.5, 1], [-1.0, 2], [0.25, 0]], np.float32)
    env = vec(Parts, 3, "pool")
    env.reset(0)
    env.send(actions)
    np.testing.assert_array_equal(env.recv().obs, actions * [2, 1])
    env.close()


def test_observations_stay_while_the_pool_steps_on():
    env = vec(Count, 4, "pool")
    env.reset(0)
    idle(env, 1)
    env.send(np.zeros(4, np.int64))
    obs = env.recv().obs
    kept = obs.copy()
    env.send(np.zeros(4, np.int64))
    env.recv()
    np.testing.assert_array_equal(obs, kept)
    env.close()


def test_the_environment_that_hangs_is_named_and_ends_with_the_pool():
    class Hangs(Count):
        def step(self, action):
            time.sleep(30 * (action == 2))
            return super().step(action)

    env = vec(Hangs, 4, "pool")
    env.reset(0)
    env.send(np.array([2, 0, 0, 0]))
    time.sleep(0.3)
    found, processes = env._envs.silent(), env._envs.processes
    del env
    gc.collect()
    assert found == [0] and not any(process.is_alive() for process in processes)
