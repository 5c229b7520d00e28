"""CASA: Critic AS an Actor. One advantage head is both critic and actor.

    import casa
    v, q, log_pi = casa.casa_head(advantage, value, tau=0.1)
    run = casa.train(recipe="casa", env="CartPole-v1", steps=100_000)
    action, state = casa.load(run).predict(obs)

Names are loaded when they are first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casa import atari57, diagnostics, heads, losses, nn, register, targets
    from casa.envs.registry import make_env
    from casa.errors import UserError
    from casa.heads import HeadOutput, casa_head
    from casa.run.agent import Agent, load
    from casa.run.callbacks import Callback, StopAtReturn
    from casa.run.handle import Run, train
    from casa.run.training import Training

__version__ = "0.1.0"

_MODULES = ("atari57", "diagnostics", "heads", "losses", "nn", "register", "targets")
_NAMES = {
    "Agent": "run.agent",
    "Callback": "run.callbacks",
    "HeadOutput": "heads",
    "Run": "run.handle",
    "StopAtReturn": "run.callbacks",
    "Training": "run.training",
    "UserError": "errors",
    "casa_head": "heads",
    "load": "run.agent",
    "make_env": "envs.registry",
    "train": "run.handle",
}
__all__ = [
    "Agent",
    "Callback",
    "HeadOutput",
    "Run",
    "StopAtReturn",
    "Training",
    "UserError",
    "atari57",
    "casa_head",
    "diagnostics",
    "heads",
    "load",
    "losses",
    "make_env",
    "nn",
    "register",
    "targets",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"casa.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"casa.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'casa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
