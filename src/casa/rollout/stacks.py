"""Frame stacks for acting, rebuilt on the device from single frames."""

from __future__ import annotations

import torch
from torch import Tensor


class FrameStacks:
    """obs[i] = the newest `stack` frames of environment i's episode, oldest first, padded with zeros at its start.

    Only single frames are copied to the device. Each environment has its own ring of `stack` frames, so that acting
    does not depend on the trajectory ring. All memory is static, for CUDA graphs.
    """

    def __init__(
        self, count: int, stack: int, frame_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.stack, self.frame_shape = stack, frame_shape
        # The last row stays zero: it stands for the frames before an episode's start.
        self._frames = torch.zeros(count * stack + 1, *frame_shape, dtype=dtype, device=device)
        self._position = torch.zeros(count, dtype=torch.int64, device=device)
        self._age = torch.zeros(count, dtype=torch.int64, device=device)
        self._back = torch.arange(stack - 1, -1, -1, device=device)

    def push(self, env_ids: Tensor, frames: Tensor, starts: Tensor) -> None:
        """Add the newest frame [n, ...] of some environments; `starts` [n]: whether it is the first of its episode."""
        position = (self._position[env_ids] + 1) % self.stack
        self._position[env_ids] = position
        self._age[env_ids] = torch.where(starts, 0, self._age[env_ids] + 1)
        self._frames[env_ids * self.stack + position] = frames

    def observations(self, env_ids: Tensor) -> Tensor:
        """Observations [n, stack, *frame], or [n, *frame] if `stack` is 1."""
        if self.stack == 1:
            return self._frames[env_ids]
        rows = env_ids.unsqueeze(-1) * self.stack + (self._position[env_ids].unsqueeze(-1) - self._back) % self.stack
        index = torch.where(self._age[env_ids].unsqueeze(-1) < self._back, len(self._frames) - 1, rows)
        flat = self._frames.flatten(1).index_select(0, index.flatten())
        return flat.view(*index.shape, *self.frame_shape)
