"""Environments that a run finds by the name of this module: a grid, a picture, and ones that go wrong."""

import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete


class Catch(gym.Env):
    """A MinAtar-like grid [6, 5, 2] of flags: a ball falls, a paddle moves; the reward is whether they meet."""

    def __init__(self):
        self.observation_space = Box(0, 1, (6, 5, 2), np.bool_)
        self.action_space = Discrete(3)

    def observe(self):
        grid = np.zeros((6, 5, 2), np.bool_)
        grid[self.row, self.ball, 0] = grid[5, self.paddle, 1] = True
        return grid

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(5)), 2
        return self.observe(), {}

    def step(self, action):
        self.row += 1
        self.paddle = int(np.clip(self.paddle + action - 1, 0, 4))
        over = self.row == 5
        return self.observe(), float(over and self.ball == self.paddle), over, False, {}


class Picture(Catch):
    """The same as a picture of 24 x 20 gray pixels."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 255, (24, 20), np.uint8)

    def observe(self):
        grid = super().observe()
        return np.kron(grid[..., 0] * 200 + grid[..., 1] * 55, np.ones((4, 4))).astype(np.uint8)


class Buttons(Catch):
    """The same with an action of two parts: where to go, and whether to go at all."""

    def __init__(self):
        super().__init__()
        self.action_space = MultiDiscrete([3, 2])

    def step(self, action):
        return super().step(action[0] if action[1] else 1)


class Slow(Catch):
    """A run on it lasts long enough to be interrupted."""

    def __init__(self, seconds=0.001):
        super().__init__()
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Faulty(gym.Env):
    """Endless episodes that go wrong in the way that `how` says, at step `at`."""

    def __init__(self, how="", at=30):
        self.observation_space = Box(-9, 9, (3,), np.float32)
        self.action_space = Discrete(2)
        self.how, self.at, self.resets = how, at, 0

    def observe(self):
        return np.array([self.steps % 5, self.steps % 3, 1], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.resets = 0, self.resets + 1
        if self.how == "reset raises" and self.resets == 2:
            raise ValueError("no way back")
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        obs, reward = self.observe(), 1.0
        if self.how == "huge reward":
            reward = 3e38
        if self.steps == self.at:
            if self.how == "raises":
                raise ValueError("the bridge is out")
            if self.how == "obs nan":
                obs[1] = np.nan
            if self.how == "reward nan":
                reward = float("nan")
            if self.how == "shape":
                obs = obs[:2]
            if self.how == "dtype":
                obs = obs.astype(str)
        return obs, reward, False, False, {}


class Wide(gym.Env):
    """Spaces of any size; an action outside its space is an error."""

    def __init__(self, observation=0, actions=2):
        self.observation_space = Discrete(observation) if observation else Box(-9, 9, (3,), np.float32)
        self.action_space = Discrete(actions)

    def observe(self):
        if isinstance(self.observation_space, Discrete):
            return int(self.np_random.integers(self.observation_space.n))
        return np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(int(action)), action
        self.steps += 1
        return self.observe(), 1.0, self.steps == 20, False, {}
