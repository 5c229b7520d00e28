"""Small environments with known streams, and the canonical stream of any VecEnv."""

import os
import signal
import sys
from collections import defaultdict

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Count(gym.Env):
    """Observation (number drawn at reset, episode, age); even episodes terminate, odd ones are truncated.

    Reward: the action plus the age. An episode lasts 2 to 6 steps.
    """

    def __init__(self, space=None):
        self.observation_space = space or Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(3)
        self.episode = -1

    def observe(self):
        return np.array([self.drawn, self.episode, self.age], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.drawn, self.age = int(self.np_random.integers(1, 200)), 0
        return self.observe(), {"drawn": self.drawn}

    def step(self, action):
        reward = float(action + self.age)
        self.age += 1
        over = self.age == 2 + self.drawn % 5
        return self.observe(), reward, over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


class Screen(Count):
    """The same as pictures: every pixel of the frame is a function of (drawn, episode, age)."""

    def __init__(self, shape=(24, 30)):
        super().__init__(Box(0, 255, shape, np.uint8))

    def observe(self):
        size = int(np.prod(self.observation_space.shape))
        pixels = 1 + (np.arange(size) + 7 * self.drawn + 31 * self.episode + 5 * self.age) % 250
        return pixels.astype(np.uint8).reshape(self.observation_space.shape)


class Broken(Count):
    """Goes wrong at step `at` in the way that `how` says, in the environment whose first reset drew `which`."""

    def __init__(self, how="", at=3, which=None):
        super().__init__()
        self.how, self.at, self.steps, self.which, self.first = how, at, 0, which, None

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.first = self.drawn if seed is not None else self.first
        return self.spoil(obs), info

    def step(self, action):
        self.steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        terminated = truncated = False
        if self.broken():
            if self.how == "raises":
                raise ValueError("the bridge is out")
            if self.how == "exits":
                sys.exit(0)
            if self.how == "dies":
                os._exit(7)
            if self.how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "four":
                return obs, reward, terminated, info
            reward = {"reward nan": np.nan, "reward inf": -np.inf, "reward none": None}.get(self.how, reward)
        return self.spoil(obs), reward, terminated, truncated, info

    def broken(self):
        return self.steps == self.at and self.which in (None, self.first)

    def spoil(self, obs):
        if self.broken():
            if self.how == "obs nan":
                obs[1] = np.nan
            if self.how == "obs inf":
                obs[2] = np.inf
            if self.how == "shape":
                return obs[:2]
            if self.how == "dtype":
                return obs.astype(str)
        return obs


def act(obs):
    """An action for each environment that depends on what it sees, and on nothing else."""
    flat = obs.reshape(len(obs), -1).astype(np.int64)
    return (flat.sum(1) + flat[:, -1]) % 3


def idle(env, steps):
    """Step with action 0."""
    for _ in range(steps):
        env.send(np.zeros(env.spec.num_envs, np.int64))
        env.recv()


def canonical(env, steps, seed=5):
    """Per environment the slots (obs bytes, reward, terminated, truncated, start, dummy) of the next-step stream.

    Environments that reset within a step have more slots; the first `steps` of each are returned.
    """
    slots = defaultdict(list)
    obs = env.reset(seed).copy()
    starts = np.ones(len(obs), bool)
    for _ in range(steps):
        env.send(act(obs))
        batch = env.recv()
        for i in range(len(obs)):
            ended = bool(batch.terminated[i] or batch.truncated[i])
            row = (float(batch.rewards[i]), bool(batch.terminated[i]), bool(batch.truncated[i]))
            slots[i].append((obs[i].tobytes(), *row, bool(starts[i]), bool(batch.dummy[i])))
            if i in batch.final:
                assert ended
                slots[i].append((batch.final[i].tobytes(), 0.0, False, False, False, True))
        starts = batch.dummy.copy()
        starts[list(batch.final)] = True
        obs = batch.obs.copy()
    return [slots[i][:steps] for i in sorted(slots)]
