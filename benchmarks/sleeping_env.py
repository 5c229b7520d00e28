"""Environments whose step is a sleep, so that many rollout workers fit on few cores: `--env sleeping_env:Sleeping`."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Sleeping(VectorEnv[Any, Any, Any]):
    """Noise as observations, episodes of 100 steps; one step of all environments takes `seconds`."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, seconds: float = 0.02, size: int = 64) -> None:
        self.num_envs, self.seconds = num_envs, seconds
        self.single_observation_space: gym.Space[Any] = Box(-1.0, 1.0, (size,), np.float32)
        self.single_action_space: gym.Space[Any] = Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rng, self._age = np.random.default_rng(0), np.zeros(num_envs, np.int64)

    def _observe(self) -> np.ndarray:
        shape = self.observation_space.shape
        return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._age[:] = 0
        return self._observe(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        time.sleep(self.seconds)
        self._age = np.where(self._age == 100, 0, self._age + 1)
        never = np.zeros(self.num_envs, np.bool_)
        return self._observe(), self._rng.uniform(size=self.num_envs), never, self._age == 100, {}
