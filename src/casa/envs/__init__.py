"""One vector-environment interface, `send` and `recv`, over ALE, Gymnasium and the user's own environments.

May import the configuration, the runtime and `casa.actions`. `types.py` defines the interface, `registry.make_env`
makes environments from a name, `spaces.py` maps Gymnasium spaces to network inputs and actions.
"""

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
    # Lazy: the command line needs only EnvConfig and must not wait for the import of Gymnasium.
    if name in _NAMES:
        return getattr(importlib.import_module(f"casa.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'casa.envs' has no attribute {name!r}")
