"""The environment's part of a run configuration, checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from casa.config.ranges import BELOW_ONE, Text, check, integers

Vectorization = Literal["auto", "sync", "async", "native"]


@dataclass(frozen=True)
class EnvConfig:
    """Which environments, how many, and the protocol; the defaults are the paper's Atari protocol.

    The id names a game, never a protocol: `BreakoutNoFrameskip-v4` and `ALE/Breakout-v5` are the same here.
    """

    id: Annotated[str, Text("a name such as 'ALE/Breakout-v5'", lambda value: bool(value.strip()))] = "ALE/Breakout-v5"
    """A game (Breakout, ALE/Breakout-v5), a Gymnasium id (CartPole-v1), or your own: my_module:MyEnv-v0,
    my_module:make_env."""
    num_envs: Annotated[int, integers(1, 100_000)] = 160
    """Environments stepped side by side."""
    group_size: Annotated[int, integers(0, 100_000)] = 0
    """Atari: environments inferred together in async mode, the first to be ready; a divisor of num_envs, 0 = half of
    them, or all where that is not whole."""
    threads: Annotated[int, integers(0, 4_096)] = 0
    """Atari: emulator threads, 0 = one a core."""
    sticky: Annotated[float, BELOW_ONE] = 0.0
    """Atari: chance that the emulator repeats the last action for a frame; 0.25 is the sticky protocol."""
    frame_skip: Annotated[int, integers(1, 100)] = 4
    """Atari: frames that an action is held."""
    frame_stack: Annotated[int, integers(1, 32)] = 4
    """Images: frames in an observation, oldest first; before an episode's first frame there are zeros."""
    frame_size: Annotated[int, integers(16, 512)] = 84
    """Atari: height and width of a frame, in pixels."""
    grayscale: bool = True
    """Atari: one gray channel a frame instead of three colours."""
    max_pool: bool = True
    """Atari: the pixelwise maximum of an action's last two frames."""
    full_action_space: bool = True
    """Atari: all 18 actions, not only those that the game uses."""
    noop_max: Annotated[int, integers(0, 10_000)] = 30
    """Atari: an episode starts with 0 to this many no-op frames, uniformly."""
    episodic_life: bool = False
    """Atari: a lost life ends the episode, and the emulator then starts a new game."""
    fire_reset: bool = False
    """Atari: press FIRE after a reset, where the game has it."""
    max_frames: Annotated[int, integers(1, 2_000_000_000)] = 108_000
    """Atari: frames after the no-ops at which an episode is truncated."""
    vectorization: Vectorization = "auto"
    """Gymnasium: all in this process (sync), a process each (async), as one step's cost suggests (auto), or by the
    environment itself (native)."""
    kwargs: Annotated[str, Text("text such as '{size: 8}'")] = ""
    """Gymnasium: arguments of the environment, as YAML or JSON: {map_name: 8x8, is_slippery: false}."""

    def __post_init__(self) -> None:
        """Raise UserError for the first field whose value is not of its type or not in its range."""
        check(self, "env.")
