"""The environment's part of a run configuration, checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from casa.config.ranges import BELOW_ONE, NOT_NEGATIVE, Text, check, integers

Vectorization = Literal["auto", "sync", "async", "pool", "native"]


@dataclass(frozen=True)
class EnvConfig:
    """The environments and their preprocessing; the defaults are the paper's Atari protocol.

    The id selects a game, not a protocol: `BreakoutNoFrameskip-v4` and `ALE/Breakout-v5` are the same here.
    """

    id: Annotated[str, Text("a name such as 'ALE/Breakout-v5'", lambda value: bool(value.strip()))] = "ALE/Breakout-v5"
    """Atari game (Breakout, ALE/Breakout-v5) or Gymnasium id (CartPole-v1).
    Your own environment: my_module:MyEnv-v0 or my_module:make_env."""
    num_envs: Annotated[int, integers(1, 100_000)] = 160
    """Number of parallel environments."""
    group_size: Annotated[int, integers(0, 100_000)] = 0
    """Atari, async mode: environments per inference batch, the first ones that are ready.
    A divisor of num_envs; 0 = half of num_envs, or all if it is odd."""
    threads: Annotated[int, integers(0, 4_096)] = 0
    """Atari: emulator threads; 0 = one per core."""
    sticky: Annotated[float, BELOW_ONE] = 0.0
    """Atari: probability of a sticky action, per frame; 0.25 is the usual value."""
    frame_skip: Annotated[int, integers(1, 100)] = 4
    """Atari: frames for which each action is repeated."""
    frame_stack: Annotated[int, integers(1, 32)] = 4
    """Images: frames per observation, oldest first, zero-padded at an episode's start."""
    frame_size: Annotated[int, integers(16, 512)] = 84
    """Atari: height and width of a frame, in pixels."""
    grayscale: bool = True
    """Atari: one gray channel per frame instead of three colours."""
    max_pool: bool = True
    """Atari: take the pixelwise maximum of an action's last two frames."""
    full_action_space: bool = True
    """Atari: all 18 actions instead of the game's minimal set."""
    noop_max: Annotated[int, integers(0, 10_000)] = 30
    """Atari: an episode starts with a random number of no-op frames, uniform from 0 to this."""
    episodic_life: bool = False
    """Atari: losing a life ends the episode, and the emulator starts a new game."""
    terminal_lives: bool = False
    """Atari: to the learner a lost life is terminal; the game goes on, and returns are those of whole games."""
    fire_reset: bool = False
    """Atari: press FIRE after a reset, if the game has that action."""
    max_frames: Annotated[int, integers(1, 2_000_000_000)] = 108_000
    """Atari: episodes are truncated after this many frames, not counting the no-ops."""
    vectorization: Vectorization = "auto"
    """Gymnasium: sync runs all environments in this process, async each in its own, pool several in one of each core.
    native needs a VectorEnv; auto chooses by the measured cost of a step."""
    action_bound: Annotated[float, NOT_NEGATIVE] = 0.0
    """Continuous actions without bounds of their own are limited to -action_bound .. action_bound; 0: an error."""
    kwargs: Annotated[str, Text("text such as '{size: 8}'")] = ""
    """Gymnasium: keyword arguments of the environment, as YAML or JSON: {map_name: 8x8, is_slippery: false}."""

    def __post_init__(self) -> None:
        """Raise a UserError for the first field with a wrong type or a value out of range."""
        check(self, "env.")
