"""Environments whose values are known, vectorised in NumPy, with next-step resets as the canonical stream has them.

An episode is described by `length`, by what is seen at each age, and by the reward for (cue, age, action). Every
probe has a control beside it, whose name ends in "!": what the probe shows has been taken out of it, so an agent that
reads the probe's values there has not learned them from the data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from casa.actions import ActionSpec
from casa.envs.types import EnvSpec, StepBatch


@dataclass(frozen=True)
class Probe:
    length: int
    reward: Callable  # (cue ±1 [N], age [N], action [N], coin ±1 [N]) -> [N]
    see: Callable  # (cue [N], age [N]) -> observations [N, 2]
    truncates: bool = False


def _see_all(cue, age):
    return np.stack([cue, age], -1).astype(np.float32)


def _see_cue_first(cue, age):
    return np.stack([np.where(age == 0, cue, 0), age], -1).astype(np.float32)


def _see_cue_as_age(cue, age):
    return np.stack([np.zeros_like(cue), cue > 0], -1).astype(np.float32)


def _blind(cue, age):
    return np.ones((len(cue), 2), np.float32)


def _right(cue, action):
    return (action == (cue > 0)).astype(np.float32)


PROBES = {
    # V(s) = 1; against a coin's +1 and -1: V(s) = 0
    "constant": Probe(1, lambda cue, age, action, coin: np.ones(len(cue)), _see_all),
    "constant!": Probe(1, lambda cue, age, action, coin: coin, _see_all),
    # V(s) = [cue > 0]: the value follows the observation; V = 1/2 where the observation says nothing
    "by-observation": Probe(1, lambda cue, age, action, coin: (cue > 0) * 1.0, _see_all),
    "by-observation!": Probe(1, lambda cue, age, action, coin: (cue > 0) * 1.0, _blind),
    # V(s_0) = γ, V(s_1) = 1; V(s_0) = 0 where an end lies between the two
    "delayed": Probe(2, lambda cue, age, action, coin: (age == 1) * 1.0, _see_all),
    "delayed!": Probe(1, lambda cue, age, action, coin: (cue > 0) * 1.0, _see_cue_as_age),
    # Q(s, a) = a; against a coin instead of the action
    "by-action": Probe(1, lambda cue, age, action, coin: action * 1.0, _see_all),
    "by-action!": Probe(1, lambda cue, age, action, coin: (coin > 0) * 1.0, _see_all),
    # Q(s, a) = [a = (cue > 0)]; the best is 1/2 where the cue cannot be seen
    "by-both": Probe(1, lambda cue, age, action, coin: _right(cue, action), _see_all),
    "by-both!": Probe(1, lambda cue, age, action, coin: _right(cue, action), _blind),
    # The cue is seen at age 0 only and asked for at age 3: a policy without memory gets 1/2
    "memory": Probe(4, lambda cue, age, action, coin: (age == 3) * _right(cue, action), _see_cue_first),
    # Reward 1 for ever, cut every 5 steps: V = 1/(1 - γ); reported as terminations, V is the mean of 5 sums
    "truncation": Probe(5, lambda cue, age, action, coin: np.ones(len(cue)), _blind, truncates=True),
    "truncation!": Probe(5, lambda cue, age, action, coin: np.ones(len(cue)), _blind),
}
LADDER = tuple(name for name in PROBES if name != "memory")
"""Every probe that needs no memory, and its control: they can be played side by side."""


def see(names: Sequence[str], name: str, cue: int, age: int) -> np.ndarray:
    """What an environment that plays `name` among `names` shows: the probe's two numbers, then which probe it is."""
    one_hot = np.float32(np.arange(len(names)) == list(names).index(name))
    seen = PROBES[name].see(np.array([cue]), np.array([age]))[0]
    return np.concatenate([seen, one_hot]) if len(names) > 1 else seen


class ProbeVec:
    """`num_envs` environments; environment i plays probe i mod n of the n `names`."""

    def __init__(self, names, num_envs, seed=0):
        self.names = (names,) if isinstance(names, str) else tuple(names)
        self.plays = np.arange(num_envs) % len(self.names)
        probes = [PROBES[name] for name in self.names]
        self.length = np.array([probe.length for probe in probes])[self.plays]
        self.truncates = np.array([probe.truncates for probe in probes])[self.plays]
        self.spec = EnvSpec(
            id="+".join(self.names),
            num_envs=num_envs,
            obs_shape=(2 + (len(self.names) if len(self.names) > 1 else 0),),
            obs_dtype=np.dtype(np.float32),
            actions=ActionSpec.discrete(2),
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

    def _each(self, function):
        """function(probe, its environments) [n, ...] for each probe, in the environments' order."""
        parts = [function(PROBES[name], self.plays == i) for i, name in enumerate(self.names)]
        out = np.zeros((self.spec.num_envs, *parts[0].shape[1:]), np.float32)
        for i, part in enumerate(parts):
            out[self.plays == i] = part
        return out

    def _see(self):
        seen = self._each(lambda probe, mine: probe.see(self.cue[mine], self.age[mine]))
        if len(self.names) == 1:
            return seen
        return np.concatenate([seen, np.eye(len(self.names), dtype=np.float32)[self.plays]], 1)

    def reset(self, seed=None):
        n = self.spec.num_envs
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.cue, self.age, self.over = np.zeros(n), np.zeros(n, int), np.zeros(n, bool)
        self._start(np.ones(n, bool))
        return self._see()

    def send(self, actions):
        self.pending = actions.copy()

    def recv(self):
        dummy = self.over.copy()
        coin = self.rng.choice([-1, 1], self.spec.num_envs)
        rewards = self._each(
            lambda probe, mine: probe.reward(self.cue[mine], self.age[mine], self.pending[mine], coin[mine])
        )
        rewards[dummy] = 0
        self.age += 1
        ends = (self.age >= self.length) & ~dummy
        if dummy.any():
            self._start(dummy)
        self.over = ends
        return StepBatch(self._see(), rewards, ends & ~self.truncates, ends & self.truncates, dummy, {})

    def close(self):
        pass
