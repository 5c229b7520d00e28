"""One environment with Gymnasium's own API, preprocessed as in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from casa.actions import ActionSpec
from casa.config.env import EnvConfig
from casa.envs.names import resolve
from casa.envs.registry import make_env
from casa.envs.source import gym_maker, module_maker, parse_kwargs
from casa.envs.types import Array, VecEnv
from casa.errors import UserError


def single_env(config: EnvConfig, **kwargs: Any) -> gym.Env[Any, Any]:
    """The environment of a configuration: as it is, or behind `Preprocessed` where training stacks its frames."""
    found = resolve(config.id)
    if found.kind == "atari":
        if kwargs:
            raise UserError(f"make_env: {', '.join(kwargs)} has no effect on Atari; use the fields of env")
        return Preprocessed(make_env(config, 1))
    maker = module_maker(found.name) if found.kind == "module" else gym_maker(found.name)
    env = maker(**{**parse_kwargs(config.kwargs), **kwargs})
    one = replace(config, num_envs=1, vectorization="auto")
    if not isinstance(env, gym.Env):  # a vector environment
        env.close()
        return Preprocessed(make_env(one, 1))
    vec = make_env(lambda: env, 1, config=replace(one, vectorization="sync"))
    return env if vec.spec.observation is not None else Preprocessed(vec, env)


class Preprocessed(gym.Env[Any, Any]):
    """A batch of one environment as a single one: observations [*obs_shape] as the network reads them."""

    def __init__(self, vec: VecEnv, inner: gym.Env[Any, Any] | None = None) -> None:
        self.vec, self.inner = vec, inner
        spec = vec.spec
        high = 255 if spec.obs_dtype == np.uint8 else np.inf
        low = 0 if spec.obs_dtype == np.uint8 else -np.inf
        self.observation_space = Box(low, high, spec.obs_shape, spec.obs_dtype.type)
        self.action_space = _action_space(spec.actions)
        self.render_mode = None if inner is None else inner.render_mode
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """The first observation of a new episode; without a seed, of a random one."""
        super().reset(seed=seed)
        word = int(self.np_random.integers(2**31)) if seed is None else seed
        self._over = False
        return self.vec.reset(word)[0].copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One step with an action of `action_space`; after an end, `reset` must follow."""
        if self._over:
            raise RuntimeError("the episode is over: call reset() before step()")
        spec = self.vec.spec.actions
        flat = np.asarray(action).reshape(1, *spec.flat_shape) - np.array(spec.starts if spec.sizes else spec.starts[0])
        self.vec.send(flat.astype(np.int64))
        step = self.vec.recv()
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        self._over = terminated or truncated
        obs = step.final.get(0, step.obs[0])
        return obs.copy(), float(step.rewards[0]), terminated, truncated, {}

    def render(self) -> Any:
        """What the environment itself shows."""
        return None if self.inner is None else self.inner.render()

    def close(self) -> None:
        """Free the environment."""
        self.vec.close()


def _action_space(spec: ActionSpec) -> gym.Space[Any]:
    if spec.kind == "discrete":
        return Discrete(spec.choices[0], start=spec.starts[0])
    if spec.kind == "multi-binary":
        return MultiBinary(spec.shape)
    shaped = (np.array(x).reshape(spec.shape) for x in (spec.choices, spec.starts))
    choices, starts = shaped
    return MultiDiscrete(choices, start=starts)
