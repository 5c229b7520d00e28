"""The scale of returns, so that learning does not depend on the unit of the rewards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from casa.envs.types import Array, Flags

Shape = Callable[[Array], Array]


class ReturnScale:
    """σ = standard deviation of G_t = r_t + γ G_{t-1} over all environments and steps so far.

    G restarts after a terminal step, a lost life included if that is terminal, and after a truncation.
    `shape` turns raw rewards into the ones that are learned from. Dividing those by σ makes values about 1 in any
    unit. Written by the acting thread; the learner reads `std`.
    """

    def __init__(self, num_envs: int, discount: float, shape: Shape) -> None:
        self.discount, self.shape = discount, shape
        self.returns = np.zeros(num_envs)
        self.count, self.mean, self.m2 = 0.0, 0.0, 0.0

    def update(self, envs: Array, rewards: Array, ends: Flags, taken: Flags) -> None:
        """Add a step of the environments `envs`; steps that are not `taken` only reset the environment."""
        envs, ends = envs[taken], ends[taken]
        if not len(envs):
            return
        self.returns[envs] = self.discount * self.returns[envs] + self.shape(rewards[taken])
        sample = self.returns[envs]
        n, total = float(len(sample)), self.count + len(sample)
        shift = float(sample.mean()) - self.mean
        self.m2 += float(((sample - sample.mean()) ** 2).sum()) + shift**2 * self.count * n / total
        self.mean += shift * n / total
        self.count = total
        self.returns[envs[ends]] = 0.0

    def restart(self, envs: Array) -> None:
        """New episodes in `envs`: their returns start from 0."""
        self.returns[envs] = 0.0

    @property
    def std(self) -> float:
        """σ, 1 as long as every return was the same."""
        std = float(np.sqrt(self.m2 / self.count)) if self.count else 0.0
        return std if std > 0 else 1.0

    def state_dict(self) -> dict[str, float]:
        """The moments. Episodes start anew after a restart, and so do their returns."""
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` gave."""
        self.count, self.mean, self.m2 = state["count"], state["mean"], state["m2"]
