"""Environments whose episodes are known from their seeds alone."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LONG = 40


class Lengths(gym.Env):
    """Reward 1 a step; an episode lasts 1 step or LONG, with equal chances. Short ones terminate, long ones do not."""

    def __init__(self):
        self.observation_space = Box(0, LONG, (2,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.age = int(self.np_random.choice([1, LONG])), 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.length, self.age], np.float32)

    def step(self, action):
        self.age += 1
        over = self.age == self.length
        return self.observe(), 1.0, over and self.length == 1, over and self.length > 1, {}


class Endless(Lengths):
    def step(self, action):
        return self.observe(), 1.0, False, False, {}


class FourActions(Lengths):
    def __init__(self):
        super().__init__()
        self.action_space = Discrete(4)


def same_step(num_envs):
    return SyncVectorEnv([Lengths] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def disabled(num_envs):
    return SyncVectorEnv([Lengths] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
