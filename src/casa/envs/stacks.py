"""Frame stacks from single frames.

The rule, which ALE's vector environment follows and so do image environments that are stacked here: the stack
holds the newest `S` frames of the episode, oldest first; where the episode has fewer, the older planes are zero.
The first observation is therefore (0, 0, 0, frame), the second (0, 0, frame, frame). Frames that the emulator
shows during the no-op start are not in it. The final observation of an episode belongs to that episode: its stack
goes on from the one before. So one frame a slot and the slot's age are enough to rebuild every stack to the bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from casa.envs.types import Array, Flags


def rebuild(frames: Array, ages: npt.NDArray[np.int64], stack: int) -> Array:
    """stacks[t, S-1-k] = frames[t-k] if k <= ages[t] else 0.

    frames [T, *frame]; ages [T]: slots since the episode's first observation (0 there); to [T, stack, *frame].
    """
    stacks = np.zeros((len(frames), stack, *frames.shape[1:]), frames.dtype)
    for back in range(stack):
        slots = np.flatnonzero(ages >= back)
        if slots.size and slots[0] < back:
            raise ValueError(f"slot {slots[0]} has age {ages[slots[0]]}, but no frame {back} slots before it")
        stacks[slots, stack - 1 - back] = frames[slots - back]
    return stacks


def push(stacks: Array, frames: Array, starts: Flags) -> Array:
    """The stacks [N, S, *frame] after `frames` [N, *frame]; rows of `starts` begin a new episode."""
    pushed = np.empty_like(stacks)
    pushed[:, :-1] = stacks[:, 1:]
    pushed[starts, :-1] = 0
    pushed[:, -1] = frames
    return pushed
