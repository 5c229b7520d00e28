"""`make_env`, and the list of environments that it can make by name."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.vector import VectorEnv

from casa.atari57 import is_game
from casa.config.env import EnvConfig
from casa.envs.atari import AtariVec
from casa.envs.gym import GymVec
from casa.envs.names import display_name, latest_ids, register_installed, resolve, roms
from casa.envs.source import Maker, build, gym_maker, maker_of, parse_kwargs
from casa.envs.spaces import action_spec, encoder
from casa.envs.types import EnvError, VecEnv
from casa.errors import UserError


def make_env(
    env: EnvConfig | str | Maker | VectorEnv[Any, Any, Any],
    num_envs: int | None = None,
    seed: int = 0,
    *,
    config: EnvConfig | None = None,
    group_size: int = 0,
    here: bool = False,
) -> VecEnv:
    """N environments behind one interface, determined by `seed`.

    `env` is a configuration; an id as in `EnvConfig.id`; a callable or class that makes a gymnasium.Env or a
    gymnasium.vector.VectorEnv (it is passed num_envs if its signature has it); or an existing VectorEnv.
    `config` holds the other settings if `env` is not a configuration. `num_envs` overrides the configuration's.
    `group_size` is `EnvSpec.group_size`, for Atari; the configuration's is ignored. `here`: the calling
    thread runs a share of a pool's environments itself, since it has nothing else to do while they step.
    """
    if isinstance(env, EnvConfig):
        config, env = env, env.id
    config = config or EnvConfig()
    if isinstance(env, str):
        config = dataclasses.replace(config, id=env)
    if num_envs is not None:
        config = dataclasses.replace(config, num_envs=num_envs)
    elif isinstance(env, VectorEnv):
        config = dataclasses.replace(config, num_envs=env.num_envs)
    if isinstance(env, VectorEnv):
        return _wrap(env, "native", type(env.unwrapped).__name__, config, seed)
    if not isinstance(env, str):
        return _from_maker(env, getattr(env, "__name__", type(env).__name__), config, seed, here)
    found = resolve(env)
    if found.kind == "atari":
        if config.kwargs.strip():
            raise UserError(f"env.kwargs {config.kwargs!r} has no effect on Atari; use the fields of env")
        return AtariVec(found.name, config, config.num_envs, seed, group_size)
    maker = maker_of(found)
    return _from_maker(maker, found.name, config, seed, here)


def _from_maker(maker: Maker, name: str, config: EnvConfig, seed: int, here: bool) -> VecEnv:
    kwargs = parse_kwargs(config.kwargs)
    how = config.vectorization
    envs, vectorization = build(maker, name, config.num_envs, how, kwargs, config.action_bound, here)
    return _wrap(envs, vectorization, name, config, seed)


def _wrap(envs: VectorEnv[Any, Any, Any], vectorization: str, name: str, config: EnvConfig, seed: int) -> VecEnv:
    if envs.num_envs != config.num_envs:
        raise UserError(f"env.num_envs is {config.num_envs}, but {name} made {envs.num_envs} environments")
    return GymVec(envs, name, config.frame_stack, seed, vectorization, config.action_bound)


class Listed(NamedTuple):
    """A registered Gymnasium id. `usable` is None if it cannot be made here, False if its spaces are not supported.

    `note` describes the environment, or says why it is not usable.
    """

    id: str
    usable: bool | None
    note: str


class EnvList(NamedTuple):
    """Environments that `make_env` can make by name."""

    atari57: list[str]
    """Games of the benchmark."""
    atari: list[str]
    """ALE's other games."""
    gymnasium: dict[str, list[Listed]]
    """Namespace (or package) -> its ids, the newest version of each."""


def list_envs() -> EnvList:
    """All Atari games, and the newest version of every Gymnasium id, each made once to see whether it works."""
    register_installed()
    games = sorted(display_name(rom) for rom in roms().values())
    groups: dict[str, list[Listed]] = {}
    for name in sorted(latest_ids().values()):
        spec = gym.registry[name]
        groups.setdefault(spec.namespace or _package(spec.entry_point), []).append(_try(name))
    return EnvList([game for game in games if is_game(game)], [game for game in games if not is_game(game)], groups)


def _package(entry_point: object) -> str:
    """`gymnasium.envs.toy_text.taxi:TaxiEnv` -> `toy_text`."""
    if not isinstance(entry_point, str):
        return "other"
    parts = entry_point.partition(":")[0].split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


def _try(name: str) -> Listed:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym_maker(name)()
    except Exception as error:
        return Listed(name, None, " ".join(str(error).split()))
    try:
        actions = action_spec(env.action_space, name)
        kind = encoder(env.observation_space, name).kind
    except EnvError as error:
        return Listed(name, False, str(error).removeprefix(f"{name}: "))
    finally:
        env.close()
    return Listed(name, True, f"{actions}, {kind} observations")
