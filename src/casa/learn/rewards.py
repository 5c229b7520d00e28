"""The table of reward transforms: from the environment's reward to the training reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from casa import tables


@dataclass(frozen=True)
class Reward:
    """`function(rewards [T, B])` -> transformed rewards [T, B], and the formula that `casa recipes` shows."""

    function: Callable[[Tensor], Tensor]
    formula: str

    def __call__(self, rewards: Tensor) -> Tensor:
        """The transformed rewards [T, B]."""
        return self.function(rewards)


def log_reward(rewards: Tensor) -> Tensor:
    """log(|r| + 1) · (2 if r >= 0 else -1)."""
    return rewards.abs().log1p() * torch.where(rewards >= 0, 2.0, -1.0)


REWARDS: tables.Table[Reward] = tables.REWARDS
REWARDS.add("raw", Reward(lambda r: r, "raw"), __name__)
REWARDS.add("clip01", Reward(lambda r: r.clamp(0, 1), "clip(r, 0, 1)"), __name__)
REWARDS.add("clip", Reward(lambda r: r.clamp(-1, 1), "clip(r, -1, 1)"), __name__)
REWARDS.add("log", Reward(log_reward, "log(|r|+1)·(2 if r ≥ 0 else -1)"), __name__)
