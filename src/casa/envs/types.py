"""What every environment looks like to the rest of CASA: a batch that is stepped in two halves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from casa.actions import ActionSpec
from casa.errors import UserError

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
ObsKind = Literal["vector", "image", "grid"]


class EnvError(UserError):
    """An environment broke its own rules: the message names the environment, the step and what was wrong."""


class StepBatch(NamedTuple):
    """One step of N environments; the arrays may be reused by the environment: copy before the next call."""

    obs: Array
    """[N, *obs_shape] what the policy acts on next; images are uint8, everything else float32."""
    rewards: npt.NDArray[np.float32]
    """[N] raw."""
    terminated: Flags
    """[N] the episode ended in a state without a future."""
    truncated: Flags
    """[N] the episode was cut: its last observation still has a value."""
    dummy: Flags
    """[N] `obs` is the first observation of a new episode; the action sent was ignored, the reward is 0."""
    final: dict[int, Array]
    """Environment -> last observation of the episode that ended in this step, where `obs` is already the
    next episode's first. Empty for environments that reset in the step after (Atari, and all that are
    vectorized here); then `obs` is that last observation itself and the next step is a dummy."""
    first: Flags | None = None
    """[N] `obs` is what `reset` did not give yet: nothing was sent for it, and no step led to it. None: nowhere."""


@dataclass(frozen=True)
class ObsSpec:
    """A Gymnasium observation space as plain data: a Box of some shape and dtype, or the integers of a Discrete.

    `low` and `high` are a Box's bounds, one number where all are the same; for a Discrete its first and last value.
    """

    space: Literal["box", "discrete"]
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def load(cls, saved: dict[str, Any]) -> ObsSpec:
        """From what `dataclasses.asdict` gave, through JSON."""
        return cls(
            saved["space"],
            tuple(int(x) for x in saved["shape"]),
            str(saved["dtype"]),
            tuple(float(x) for x in saved["low"]),
            tuple(float(x) for x in saved["high"]),
        )


@dataclass(frozen=True)
class EnvSpec:
    """The facts about a batch of environments that networks and buffers are built from."""

    id: str
    num_envs: int
    obs_shape: tuple[int, ...]
    """Of one environment, stack included: (4, 84, 84); channels first."""
    obs_dtype: np.dtype[Any]
    """uint8 for images, float32 for vectors and grids."""
    actions: ActionSpec
    frame_stack: int
    """S where obs[k] is one of S single frames, oldest first, so that a buffer needs only the newest and
    rebuilds the rest (`casa.envs.stacks`); 1 where an observation must be kept whole."""
    kind: ObsKind
    atari_game: str | None
    """As in `casa.atari57.GAMES`, or None."""
    frames_per_step: int
    vectorization: str
    """How the environments are run: native, sync or async."""
    group_size: int = 0
    """Environments that `reset` and `recv` give at a time, in any order (see `VecEnv.ids`); 0: all, in order."""
    observation: ObsSpec | None = None
    """What `Agent.predict` takes; None: the encoded observation [*obs_shape] itself."""

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `from_json` makes an equal spec."""
        return {**asdict(self), "obs_dtype": self.obs_dtype.name}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> EnvSpec:
        """The spec that a checkpoint holds, also one of an earlier version; TypeError or KeyError where it is none."""
        facts = dict(saved)
        if "num_actions" in facts:
            facts["actions"] = asdict(ActionSpec.discrete(int(facts.pop("num_actions"))))
        facts["group_size"] = facts.pop("batch", facts.get("group_size", 0))
        observation = facts.pop("observation", None)
        return cls(
            **{
                **facts,
                "obs_shape": tuple(facts["obs_shape"]),
                "obs_dtype": np.dtype(facts["obs_dtype"]),
                "actions": ActionSpec.load(facts["actions"]),
                "observation": None if observation is None else ObsSpec.load(observation),
            }
        )


class VecEnv(Protocol):
    """N environments stepped together; between `send` and `recv` the caller is free to do other work.

    Where `spec.group_size` is not 0, `reset` and `recv` give the first so many that are ready, `send` takes their
    actions, and the others are under way meanwhile: N here is then the group's size.
    """

    ids: Array | None
    """The environments that the last `reset` or `recv` gave; None: all, in order."""

    @property
    def spec(self) -> EnvSpec:
        """What the observations and actions are."""

    def reset(self, seed: int | None = None) -> Array:
        """Cut all episodes, start new ones that `seed` determines, return their first observations [N, ...]."""

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Start one step with actions [N, *spec.actions.flat_shape], each counted from 0."""

    def recv(self) -> StepBatch:
        """Finish the step that `send` started."""

    def close(self) -> None:
        """Free threads and processes; may be called twice."""


def env_seeds(seed: int, num_envs: int) -> list[int]:
    """Seed of environment i: word i of the seed sequence of `seed`, below 2^31 (the emulator reads int32).

    Not seed + i: then two runs with neighbouring seeds would share all but one of their environments.
    """
    if seed < 0:
        raise UserError(f"seed must be >= 0, got {seed}")
    words = np.random.SeedSequence(seed).generate_state(num_envs)
    return [int(word) for word in words >> 1]
