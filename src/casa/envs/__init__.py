"""One interface over ALE's vector environment, Gymnasium's, and the user's own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casa.config.env import EnvConfig
    from casa.envs.registry import list_envs, make_env
    from casa.envs.types import EnvError, EnvSpec, StepBatch, VecEnv

_NAMES = {
    "EnvConfig": "config.env",
    "EnvError": "envs.types",
    "EnvSpec": "envs.types",
    "StepBatch": "envs.types",
    "VecEnv": "envs.types",
    "list_envs": "envs.registry",
    "make_env": "envs.registry",
}
__all__ = ["EnvConfig", "EnvError", "EnvSpec", "StepBatch", "VecEnv", "list_envs", "make_env"]


def __getattr__(name: str) -> Any:
    # The command line reads EnvConfig and must not wait for Gymnasium.
    if name in _NAMES:
        return getattr(importlib.import_module(f"casa.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'casa.envs' has no attribute {name!r}")
