"""Frame stacks from single frames.

A stack holds the newest `S` frames of the episode, oldest first, padded with zero planes at the episode's start. With
S = 4 the first observation is (0, 0, 0, frame), the second (0, 0, frame, frame). Frames of the no-op start are not
included. The final observation of an episode still belongs to it and continues its stack. ALE's vector environment
follows these rules, and so do the image environments that are stacked here. One frame per slot and the slot's age are
therefore enough to rebuild every stack exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from casa.envs.types import Array, Flags


def rebuild(frames: Array, ages: npt.NDArray[np.int64], stack: int) -> Array:
    """stacks[t, S-1-k] = frames[t-k] if k <= ages[t] else 0.

    frames [T, *frame]; ages [T]: slots since the episode's first observation, which has age 0. Returns
    [T, stack, *frame].
    """
    stacks = np.zeros((len(frames), stack, *frames.shape[1:]), frames.dtype)
    for back in range(stack):
        slots = np.flatnonzero(ages >= back)
        if slots.size and slots[0] < back:
            raise ValueError(f"slot {slots[0]} has age {ages[slots[0]]}, but no frame {back} slots before it")
        stacks[slots, stack - 1 - back] = frames[slots - back]
    return stacks


def push(stacks: Array, frames: Array, starts: Flags) -> Array:
    """The stacks [N, S, *frame] with `frames` [N, *frame] pushed; a new episode begins where `starts` [N] is true."""
    pushed = np.empty_like(stacks)
    pushed[:, :-1] = stacks[:, 1:]
    pushed[starts, :-1] = 0
    pushed[:, -1] = frames
    return pushed
