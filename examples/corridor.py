"""An environment of your own, trained by name: see docs/training.md.

    cd examples
    casa train --recipe ppo-casa --env corridor:make_env --env.kwargs "{length: 8}" --steps 30_000 --run-dir runs/own
    casa eval runs/own --trust
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Corridor(gym.Env[np.ndarray, np.int64]):
    """Start at the left end; 1 for reaching the right end, which ends the episode; cut after four times the length."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)  # left, right

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """To the left end."""
        super().reset(seed=seed)
        self.position = self.steps = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step to the left or to the right."""
        self.position = max(self.position + (1 if action == 1 else -1), 0)
        self.steps += 1
        terminated = self.position == self.length
        return self._look(), float(terminated), terminated, self.steps >= 4 * self.length, {}

    def _look(self) -> np.ndarray:
        return np.array([self.position / self.length], np.float32)


def make_env(length: int = 8) -> gym.Env[np.ndarray, np.int64]:
    """What `--env corridor:make_env` calls, with `--env.kwargs`."""
    return Corridor(length)
