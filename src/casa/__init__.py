"""CASA: Critic AS an Actor. One advantage head is both critic and actor.

    import casa
    v, q, log_pi = casa.casa_head(advantage, value, tau=0.1)
    action, state = casa.load("runs/x").predict(obs)

Names are loaded when they are first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casa import atari57, diagnostics, heads, losses, nn, targets
    from casa.agent import Agent, load
    from casa.errors import UserError
    from casa.heads import HeadOutput, casa_head

__version__ = "0.1.0"

_MODULES = ("atari57", "diagnostics", "heads", "losses", "nn", "targets")
_NAMES = {"Agent": "agent", "HeadOutput": "heads", "UserError": "errors", "casa_head": "heads", "load": "agent"}
__all__ = [
    "Agent",
    "HeadOutput",
    "UserError",
    "atari57",
    "casa_head",
    "diagnostics",
    "heads",
    "load",
    "losses",
    "nn",
    "targets",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"casa.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"casa.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'casa' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
