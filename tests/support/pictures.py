"""An environment of small pictures whose answer is known: a bar on one side, seen once, asked for while it is in the
stack. Next-step resets, as the canonical stream has them.
"""

import numpy as np

from casa.actions import ActionSpec
from casa.envs.types import EnvSpec, StepBatch

SIDE, STACK, LENGTH = 24, 4, 3


class PictureVec:
    """The best policy gets 1 a step and LENGTH an episode; one that sees only the newest frame gets half of that."""

    def __init__(self, num_envs, seed=0):
        self.spec = EnvSpec(
            id="pictures",
            num_envs=num_envs,
            obs_shape=(STACK, SIDE, SIDE),
            obs_dtype=np.dtype(np.uint8),
            actions=ActionSpec.discrete(2),
            frame_stack=STACK,
            kind="image",
            atari_game=None,
            frames_per_step=1,
            vectorization="native",
        )
        self.rng = np.random.default_rng(seed)

    def reset(self, seed=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        n = self.spec.num_envs
        self.age, self.cue = np.zeros(n, int), self.rng.integers(0, 2, n)
        self.stack = np.zeros((n, STACK, SIDE, SIDE), np.uint8)
        self.ended = np.zeros(n, bool)
        self._push(np.ones(n, bool))
        return self.stack.copy()

    def _push(self, started):
        self.stack[started] = 0
        self.stack[:, :-1] = self.stack[:, 1:]
        frame = self.rng.integers(0, 60, (len(started), SIDE, SIDE), dtype=np.uint8)
        for i in np.flatnonzero(self.age == 0):
            half = slice(0, SIDE // 2) if self.cue[i] == 0 else slice(SIDE // 2, SIDE)
            frame[i, :, half] += 180
        self.stack[:, -1] = frame

    def send(self, actions):
        self.actions = np.array(actions)

    def recv(self):
        dummy = self.ended
        rewards = ((self.actions == self.cue) & ~dummy).astype(np.float32)
        self.age = np.where(dummy, 0, self.age + 1)
        self.cue = np.where(dummy, self.rng.integers(0, 2, len(dummy)), self.cue)
        self._push(dummy)
        self.ended = ~dummy & (self.age == LENGTH)
        no = np.zeros_like(dummy)
        return StepBatch(self.stack.copy(), rewards, self.ended.copy(), no, dummy.copy(), {})

    def close(self):
        pass
