"""The environment's part of a run configuration, checked when it is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from casa.errors import UserError, nearest

Vectorization = Literal["auto", "sync", "async"]
_VECTORIZATIONS = ("auto", "sync", "async")


@dataclass(frozen=True)
class EnvConfig:
    """Which environments, how many, and the protocol; the defaults are the paper's Atari protocol.

    The id names a game, never a protocol: `BreakoutNoFrameskip-v4` and `ALE/Breakout-v5` are the same here.
    """

    id: str = "ALE/Breakout-v5"
    """A game (Breakout, ALE/Breakout-v5), a Gymnasium id (CartPole-v1), or your own: my_module:MyEnv-v0,
    my_module:make_env."""
    num_envs: int = 160
    """Environments stepped side by side."""
    batch: int = 0
    """Atari: environments served together in async mode, the first to be ready; a divisor of num_envs, 0 = half of
    them, or all where that is not whole."""
    threads: int = 0
    """Atari: emulator threads, 0 = one a core."""
    sticky: float = 0.0
    """Atari: chance that the emulator repeats the last action for a frame; 0.25 is the sticky protocol."""
    frame_skip: int = 4
    """Atari: frames that an action is held."""
    frame_stack: int = 4
    """Images: frames in an observation, oldest first; before an episode's first frame there are zeros."""
    frame_size: int = 84
    """Atari: height and width of a frame, in pixels."""
    grayscale: bool = True
    """Atari: one gray channel a frame instead of three colours."""
    max_pool: bool = True
    """Atari: the pixelwise maximum of an action's last two frames."""
    full_action_space: bool = True
    """Atari: all 18 actions, not only those that the game uses."""
    noop_max: int = 30
    """Atari: an episode starts with 0 to this many no-op frames, uniformly."""
    episodic_life: bool = False
    """Atari: a lost life ends the episode, and the emulator then starts a new game."""
    fire_reset: bool = False
    """Atari: press FIRE after a reset, where the game has it."""
    max_frames: int = 108_000
    """Atari: frames after the no-ops at which an episode is truncated."""
    vectorization: Vectorization = "auto"
    """Gymnasium: all in this process (sync), a process each (async), or as one step's cost suggests (auto)."""
    kwargs: str = ""
    """Gymnasium: arguments of the environment, as YAML or JSON: {map_name: 8x8, is_slippery: false}."""

    def __post_init__(self) -> None:
        """Raise UserError for the first field whose value is not of its type or not in its range."""
        for field in fields(self):
            value = getattr(self, field.name)
            kind, text, holds = _RULES[field.name]
            right_type = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if not right_type or not holds(value):
                hint = _hint(field.name, value)
                raise UserError(f"env.{field.name} must be {text}, got {value!r}{hint}")


def _hint(name: str, value: Any) -> str:
    near = nearest(str(value), _VECTORIZATIONS) if name == "vectorization" else None
    return f"; did you mean {near!r}?" if near else ""


def _integer(low: int, high: int) -> tuple[Any, str, Callable[[Any], bool]]:
    return int, f"an integer from {low} to {high}", lambda value: low <= value <= high


_FLAG: tuple[Any, str, Callable[[Any], bool]] = (bool, "true or false", lambda value: True)
_RULES: dict[str, tuple[Any, str, Callable[[Any], bool]]] = {
    "id": (str, "a name such as 'ALE/Breakout-v5'", lambda value: bool(value.strip())),
    "num_envs": _integer(1, 100_000),
    "batch": _integer(0, 100_000),
    "threads": _integer(0, 4096),
    "sticky": ((int, float), "at least 0 and below 1", lambda value: math.isfinite(value) and 0 <= value < 1),
    "frame_skip": _integer(1, 100),
    "frame_stack": _integer(1, 32),
    "frame_size": _integer(16, 512),
    "noop_max": _integer(0, 10_000),
    "max_frames": _integer(1, 2_000_000_000),
    **dict.fromkeys(("grayscale", "max_pool", "full_action_space", "episodic_life", "fire_reset"), _FLAG),
    "vectorization": (str, "'auto', 'sync' or 'async'", lambda value: value in _VECTORIZATIONS),
    "kwargs": (str, "text such as '{size: 8}'", lambda value: True),
}
