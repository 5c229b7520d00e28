"""Environments that go wrong; imported by the processes of the campaign as `bad_envs:Bad`."""

from __future__ import annotations

import os
import signal
import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Bad(gym.Env):
    """Goes wrong in the way that `how` says at its step `at`, in every second environment."""

    def __init__(self, how: str = "", at: int = 200) -> None:
        self.how, self.at, self.steps = how, at, 0
        self.action_space = Discrete(100_000 if how == "actions" else 2)
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        if how == "states":
            self.observation_space = Discrete(100_000)
        if how == "more states":
            self.observation_space = Discrete(10**9)
        if how == "image":
            self.observation_space = Box(0, 255, (2500, 2500, 3), np.uint8)
        if how == "no space":
            del self.observation_space

    def observe(self) -> object:
        if isinstance(self.observation_space, Discrete):
            return int(self.np_random.integers(self.observation_space.n))
        if self.how == "image":
            return np.zeros((2500, 2500, 3), np.uint8)
        return np.array([self.steps % 5, 1e300 if self.wrong("1e300") else 0, 1], np.float64)

    def wrong(self, how: str) -> bool:
        return self.how == how and self.steps == self.at and self.mine

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.mine = seed % 2 == 1
        self.age = 0
        return self.observe(), {}

    def step(self, action):
        self.age, self.steps = self.age + 1, self.steps + 1
        assert self.action_space.contains(int(action)), f"{action} is not an action"
        if self.wrong("exit"):
            sys.exit()
        if self.wrong("die"):
            os._exit(3)
        if self.wrong("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.wrong("raise"):
            raise ValueError("the bridge is out")
        if self.wrong("hang"):
            time.sleep(1000)
        return self.observe(), float(self.age % 3), self.age == 50, False, {}

    def close(self):
        if self.how == "close":
            raise ValueError("it sticks")
