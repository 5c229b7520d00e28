"""Make environments from a Gymnasium id, a name in the user's module, a callable, or a vector environment."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from casa.config.env import Vectorization
from casa.config.plugins import import_module
from casa.config.safe_yaml import load_plain
from casa.envs.guard import Guard, close_quietly
from casa.envs.names import EnvId
from casa.envs.pool import Pool
from casa.envs.spaces import action_spec, encoder
from casa.envs.types import EnvError
from casa.envs.workers import Workers, is_worker
from casa.errors import UserError, describe, nearest
from casa.runtime.machine import cores
from casa.runtime.resources import require_memory
from casa.runtime.threads import allowed_cores

Maker = Callable[..., Any]
"""Returns a gymnasium.Env or a gymnasium.vector.VectorEnv; it is passed num_envs if its signature has it."""

WORTH_A_PROCESS = 2e-4
"""Seconds per step above which an environment that waits is faster in a process of its own."""
WORTH_A_POOL, WORTH_SHARING = 8e-4, 3e-4
"""Seconds per step of all environments above which a pool is faster than one process, if cores are free; the second
number is for a pool of which the calling process runs a share itself (docs/training.md)."""
_TRIAL_STEPS = 8


def parse_kwargs(text: str) -> dict[str, Any]:
    """`{size: 8}` -> {"size": 8}."""
    try:
        found = load_plain(text) if text.strip() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UserError(f"env.kwargs must be a mapping such as '{{size: 8, slippery: false}}', got {text!r}")
    return found


def maker_of(found: EnvId) -> Maker:
    """The constructor of a registered id or of a name in the user's module; Atari has its own vector environment."""
    return module_maker(found.name) if found.kind == "module" else gym_maker(found.name)


def gym_maker(name: str) -> Maker:
    """The constructor of a registered id, without Gymnasium's checker: `Guard` does the checks."""
    return lambda **kwargs: gym.make(name, disable_env_checker=True, **kwargs)


def module_maker(name: str) -> Maker:
    """`module:Id-v0` -> that id after importing the module; `module:attribute` -> the callable of that name."""
    module_name, _, attribute = name.partition(":")
    before = set(gym.registry)
    module = import_module(module_name, f"env.id {name!r}")
    if attribute in gym.registry:
        return gym_maker(attribute)
    try:
        found = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        options = [*sorted(set(gym.registry) - before), *(key for key in vars(module) if key[:1] != "_")]
        near = nearest(attribute, options)
        hint = f"; did you mean '{module_name}:{near}'?" if near else ""
        raise UserError(
            f"env.id {name!r}: module {module_name!r} registers no id and has no attribute {attribute!r}{hint}"
        ) from None
    if not callable(found):
        raise UserError(
            f"env.id {name!r}: {attribute} is a {type(found).__name__}, not something that makes an environment"
        )
    return found


def build(
    make: Maker,
    name: str,
    num_envs: int,
    vectorization: Vectorization,
    kwargs: dict[str, Any],
    action_bound: float = 0.0,
    here: bool = False,
) -> tuple[VectorEnv[Any, Any, Any], str]:
    """(N environments of `make` as one VectorEnv, their vectorization: native, sync, async or pool).

    `here`: this process runs a share of a pool itself.
    """
    if _takes_num_envs(make):
        kwargs = {**kwargs, "num_envs": num_envs}
    first = _create(make, name, kwargs)
    if isinstance(first, VectorEnv):
        return first, "native"
    if vectorization == "native":
        close_quietly(first, name)
        raise UserError(f"env.vectorization 'native' needs a VectorEnv, but {name} makes single ones; use 'auto'")
    if not isinstance(first, gym.Env):
        raise UserError(
            f"env.id {name!r} made a {type(first).__name__}; it must make a gymnasium.Env or gymnasium.vector.VectorEnv"
        )
    try:
        for space in ("observation_space", "action_space"):
            if not isinstance(getattr(first, space, None), gym.Space):
                raise EnvError(f"{name}: the environment has no {space}; set it in its constructor")
        encoder(first.observation_space, name)
        action_spec(first.action_space, name, action_bound)
        processes = cores()
        if vectorization == "auto":
            processes = allowed_cores()
            vectorization = _suggest(first, num_envs, WORTH_SHARING if here else WORTH_A_POOL)
    finally:
        close_quietly(first, name)
    size = num_envs * prod(first.observation_space.shape or (1,)) * np.dtype(first.observation_space.dtype).itemsize
    # Three copies: the environments', the vector environment's and the encoded one.
    require_memory(
        3 * size, torch.device("cpu"), f"one observation of each of {num_envs} environments", "lower env.num_envs"
    )
    makers = [_Slot(make, name, kwargs, index, first) for index in range(num_envs)]
    if vectorization == "async":
        return Workers(makers), "async"
    if vectorization == "pool":
        return Pool(makers, min(processes, num_envs), first.observation_space, first.action_space, here), "pool"
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP), "sync"


@dataclass(frozen=True)
class _Slot:
    """Factory of environment `index` of a batch, called in the process that will run it."""

    make: Maker
    name: str
    kwargs: dict[str, Any]
    index: int
    like: gym.Env[Any, Any]
    """An environment with the same spaces."""

    def __call__(self) -> Guard:
        if not is_worker():
            return Guard(_create(self.make, self.name, self.kwargs), self.index)
        try:
            return Guard(_create(self.make, self.name, self.kwargs), self.index)
        except UserError as error:  # raised by the first reset, since Gymnasium does not pass it on from here
            return Guard(_Unmade(self.like, EnvError(f"environment {self.index}: {error}")), self.index)


class _Unmade(gym.Env[Any, Any]):
    def __init__(self, like: gym.Env[Any, Any], error: EnvError) -> None:
        self.observation_space, self.action_space, self.error = like.observation_space, like.action_space, error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise self.error


def _create(make: Maker, name: str, kwargs: dict[str, Any]) -> Any:
    try:
        return make(**kwargs)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"env.id {name!r} could not be made: {describe(error)}") from error


def _takes_num_envs(make: Maker) -> bool:
    try:
        return "num_envs" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False


def _suggest(env: gym.Env[Any, Any], num_envs: int, worth_a_pool: float) -> Vectorization:
    """sync for cheap steps, pool for steps that compute, async for steps that wait; the data are the same.

    The lower quartile of a few steps: other programs on the machine make some of them slow. A step that computes needs
    a core, so more processes than cores are of no use. A step that waits for another program needs only a process.
    """
    if num_envs == 1 or cores() == 1:
        return "sync"
    trial = Guard(env, 0)
    trial.reset(seed=0)
    env.action_space.seed(0)
    costs, busy = [], []
    for _ in range(_TRIAL_STEPS):
        action = env.action_space.sample()
        began, computed = time.perf_counter(), time.thread_time()
        _, _, terminated, truncated, _ = trial.step(action)
        costs.append(time.perf_counter() - began)
        busy.append((time.thread_time() - computed) / costs[-1])
        if terminated or truncated:
            trial.reset()
    cost = statistics.quantiles(costs, n=4)[0]
    if cost > WORTH_A_PROCESS and max(busy) < 0.5:
        return "async"
    return "pool" if allowed_cores() > 1 and num_envs * cost > worth_a_pool else "sync"
