"""Environments whose values are known, vectorised in NumPy, with next-step resets as the canonical stream has them.

An episode is described by `length`, by what is seen at each age, and by the reward for (cue, age, action).
"""

from dataclasses import dataclass

import numpy as np

from casa.envs.types import EnvSpec, StepBatch


@dataclass(frozen=True)
class Probe:
    length: int
    reward: object  # (cue ±1 [N], age [N], action [N]) -> [N]
    see: object  # (cue [N], age [N]) -> observations [N, D]
    truncates: bool = False
    actions: int = 2
    size: int = 2


def _see_all(cue, age):
    return np.stack([cue, age], -1).astype(np.float32)


def _see_cue_first(cue, age):
    return np.stack([np.where(age == 0, cue, 0), age], -1).astype(np.float32)


def _blind(cue, age):
    return np.ones((len(cue), 2), np.float32)


def _right(cue, action):
    return (action == (cue > 0)).astype(np.float32)


PROBES = {
    # V(s) = 1
    "constant": Probe(1, lambda cue, age, action: np.ones(len(cue)), _see_all),
    # V(s) = cue (0 or 1): the value follows the observation
    "by-observation": Probe(1, lambda cue, age, action: (cue > 0) * 1.0, _see_all),
    # V(s_0) = γ, V(s_1) = 1
    "delayed": Probe(2, lambda cue, age, action: (age == 1) * 1.0, _see_all),
    # Q(s, a) = a
    "by-action": Probe(1, lambda cue, age, action: action * 1.0, _see_all),
    # Q(s, a) = [a = (cue > 0)]
    "by-both": Probe(1, lambda cue, age, action: _right(cue, action), _see_all),
    # The cue is seen at age 0 only and asked for at age 3
    "memory": Probe(4, lambda cue, age, action: (age == 3) * _right(cue, action), _see_cue_first),
    # Reward 1 for ever, cut every 5 steps: V = 1/(1 - γ); taken for a termination it would be below 5
    "truncation": Probe(5, lambda cue, age, action: np.ones(len(cue)), _blind, truncates=True),
}


class ProbeVec:
    """N copies of a probe."""

    def __init__(self, name, num_envs, seed=0):
        self.probe = PROBES[name]
        self.spec = EnvSpec(
            id=name,
            num_envs=num_envs,
            obs_shape=(self.probe.size,),
            obs_dtype=np.dtype(np.float32),
            num_actions=self.probe.actions,
            frame_stack=1,
            kind="vector",
            atari_game=None,
            frames_per_step=1,
            vectorization="native",
        )
        self.rng = np.random.default_rng(seed)

    def _start(self, which):
        self.cue[which] = self.rng.choice([-1, 1], which.sum())
        self.age[which] = 0

    def reset(self, seed=None):
        n = self.spec.num_envs
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.cue, self.age, self.over = np.zeros(n), np.zeros(n, int), np.zeros(n, bool)
        self._start(np.ones(n, bool))
        return self.probe.see(self.cue, self.age)

    def send(self, actions):
        self.pending = actions.copy()

    def recv(self):
        dummy = self.over.copy()
        rewards = np.where(dummy, 0, self.probe.reward(self.cue, self.age, self.pending)).astype(np.float32)
        self.age += 1
        ends = (self.age >= self.probe.length) & ~dummy
        if dummy.any():
            self._start(dummy)
        self.over = ends
        no = np.zeros_like(ends)
        terminated, truncated = (no, ends) if self.probe.truncates else (ends, no)
        return StepBatch(self.probe.see(self.cue, self.age), rewards, terminated, truncated, dummy, {})

    def close(self):
        pass
