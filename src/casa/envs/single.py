"""A single environment with Gymnasium's API, preprocessed as in training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from casa.actions import ActionSpec
from casa.config.env import EnvConfig
from casa.envs.atari import AtariVec, ColourScreen
from casa.envs.gym import GymVec
from casa.envs.names import resolve
from casa.envs.registry import make_env
from casa.envs.source import maker_of, parse_kwargs
from casa.envs.spaces import encoder
from casa.envs.types import Array, VecEnv
from casa.errors import UserError


def single_env(config: EnvConfig, **kwargs: Any) -> gym.Env[Any, Any]:
    """The environment of a configuration: unwrapped, or inside `Preprocessed` if training stacks its frames."""
    found = resolve(config.id)
    if found.kind == "atari":
        render = kwargs.pop("render_mode", None)
        if kwargs or render not in (None, "rgb_array"):
            what = ", ".join(kwargs) or f"render_mode {render!r}"
            raise UserError(f"make_env: {what} has no effect on Atari; use rgb_array, or the fields of env")
        return Preprocessed(make_env(config, 1), None if render is None else ColourScreen(found.name, config))
    maker = maker_of(found)
    env = maker(**{**parse_kwargs(config.kwargs), **kwargs})
    if isinstance(env, gym.Env) and not (_is_image(env, found.name) and config.frame_stack > 1):
        return env
    env.close()
    return Preprocessed(make_env(partial(maker, **kwargs), 1, config=replace(config, num_envs=1, vectorization="auto")))


def _is_image(env: gym.Env[Any, Any], name: str) -> bool:
    return encoder(env.observation_space, name).kind == "image"


class Preprocessed(gym.Env[Any, Any]):
    """A `VecEnv` of one environment as a gymnasium.Env; observations [*obs_shape] are the network's inputs.

    `screen`: shows an Atari game in colour, for `render`.
    """

    def __init__(self, vec: VecEnv, screen: ColourScreen | None = None) -> None:
        self.vec, self.screen = vec, screen
        spec = vec.spec
        high = 255 if spec.obs_dtype == np.uint8 else np.inf
        low = 0 if spec.obs_dtype == np.uint8 else -np.inf
        self.observation_space = Box(low, high, spec.obs_shape, spec.obs_dtype.type)
        self.action_space = _action_space(spec.actions)
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """The first observation of a new episode; without `seed`, the seed is random."""
        super().reset(seed=seed)
        word = int(self.np_random.integers(2**31)) if seed is None else seed
        self._over = False
        if self.screen is not None:
            self.screen.reset(word)
        return self.vec.reset(word)[0].copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One step with an action of `action_space`; call `reset` after the end of an episode."""
        if self._over:
            raise RuntimeError("the episode is over: call reset() before step()")
        spec = self.vec.spec.actions
        self.vec.send(spec.from_env(action)[None])
        step = self.vec.recv()
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        self._over = terminated or truncated
        if self.screen is not None and self.screen.step(np.reshape(action, 1)) != (step.rewards[0], self._over):
            raise RuntimeError(f"{self.vec.spec.id}: the emulator that renders plays another game than the agent's")
        obs = step.final.get(0, step.obs[0])
        return obs.copy(), float(step.rewards[0]), terminated, truncated, {}

    def render(self) -> Any:
        """The environment's own rendering; for Atari, RGB [H, W, 3] if it was made with render_mode="rgb_array"."""
        if self.screen is not None:
            return self.screen.frame
        return self.vec.render() if isinstance(self.vec, GymVec) else None

    def get_action_meanings(self) -> list[str]:
        """The names of an Atari game's actions; empty for other environments."""
        return self.vec.action_names if isinstance(self.vec, AtariVec) else []

    def close(self) -> None:
        """Close the environment."""
        self.vec.close()
        if self.screen is not None:
            self.screen.close()


def _action_space(spec: ActionSpec) -> gym.Space[Any]:
    if spec.kind == "discrete":
        return Discrete(spec.choices[0], start=spec.starts[0])
    if spec.kind == "multi-binary":
        return MultiBinary(spec.shape)
    if spec.kind == "box":
        low, high = (np.array(x, np.float32).reshape(spec.shape) for x in (spec.low, spec.high))
        return Box(low, high)
    if spec.parts:
        inner = [_action_space(part) for part in spec.parts]
        return Dict(dict(zip(spec.names, inner, strict=True))) if spec.kind == "dict" else Tuple(inner)
    shaped = (np.array(x).reshape(spec.shape) for x in (spec.choices, spec.starts))
    choices, starts = shaped
    return MultiDiscrete(choices, start=starts)
