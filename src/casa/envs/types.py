"""The vector-environment interface: `send` starts a step of a batch, `recv` finishes it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from casa.actions import CONTINUOUS, ActionSpec
from casa.errors import UserError

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
ObsKind = Literal["vector", "image", "grid"]


class EnvError(UserError):
    """An environment failed or violated its spaces; the message names the environment, the step and the problem."""


class Abandoned(BaseException):
    """The run was told to stop while it waited for an environment that does not answer.

    No `Exception`: it may be raised inside the environment's own code, which must not catch it.
    """


class StepBatch(NamedTuple):
    """One step of N environments. The environment may reuse the arrays, so copy them before the next call."""

    obs: Array
    """[N, *obs_shape]: observations to act on next; uint8 for images, float32 for everything else."""
    rewards: npt.NDArray[np.float32]
    """[N]: raw, neither clipped nor scaled."""
    terminated: Flags
    """[N]: the episode ended in a terminal state, whose value is 0."""
    truncated: Flags
    """[N]: the episode was cut short; targets bootstrap from its last observation."""
    dummy: Flags
    """[N]: an autoreset step. `obs` is a new episode's first observation, the action was ignored, the reward is 0."""
    final: dict[int, Array]
    """Env index -> last observation of the episode that ended in this step, if `obs` is already the next episode's
    first. Empty for environments that reset one step later (Atari, and all that CASA vectorizes itself): there `obs`
    is the last observation, and the next step is a dummy."""
    first: Flags | None = None
    """[N]: `obs` is a reset observation that `reset` did not return yet (see `group_size`), so no action led to it.
    None: there are none."""
    life_lost: Flags | None = None
    """[N]: a life was lost: terminal to the learner, while the episode goes on. None: lives are ignored."""

    @property
    def terminal(self) -> Flags:
        """[N]: the next state has the value 0 to the learner: the episode terminated, or a life was lost."""
        return self.terminated if self.life_lost is None else self.terminated | self.life_lost


@dataclass(frozen=True)
class ObsSpec:
    """A Gymnasium observation space, Box or Discrete, as plain data.

    `low` and `high` are a Box's bounds, one number if all are equal; for a Discrete, its first and last value.
    """

    space: Literal["box", "discrete"]
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def load(cls, saved: dict[str, Any]) -> ObsSpec:
        """From the dictionary of `dataclasses.asdict`, after a round trip through JSON."""
        return cls(
            saved["space"],
            tuple(int(x) for x in saved["shape"]),
            str(saved["dtype"]),
            tuple(float(x) for x in saved["low"]),
            tuple(float(x) for x in saved["high"]),
        )


@dataclass(frozen=True)
class EnvSpec:
    """What networks and buffers need to know about a batch of environments."""

    id: str
    num_envs: int
    obs_shape: tuple[int, ...]
    """Shape of one observation, frame stack included, channels first: (4, 84, 84)."""
    obs_dtype: np.dtype[Any]
    """uint8 for images, float32 for vectors and grids."""
    actions: ActionSpec
    frame_stack: int
    """S if an observation is a stack of S single frames, oldest first: a buffer then stores only the newest frame and
    rebuilds the stack (`casa.envs.stacks`). 1 if observations must be stored whole."""
    kind: ObsKind
    atari_game: str | None
    """Name in `casa.atari57.GAMES`, or None."""
    frames_per_step: int
    vectorization: str
    """How the environments are run: native, sync, async or pool."""
    group_size: int = 0
    """Environments that `reset` and `recv` return at a time, in any order (see `VecEnv.ids`); 0: all, in order."""
    observation: ObsSpec | None = None
    """The space of the observations that `Agent.predict` takes; None: encoded observations [*obs_shape]."""

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `from_json` makes an equal spec."""
        return {**asdict(self), "obs_dtype": self.obs_dtype.name}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> EnvSpec:
        """The spec in a checkpoint of this or an earlier version; ValueError, TypeError or KeyError if it is none."""
        facts = dict(saved)
        if "num_actions" in facts:
            facts["actions"] = asdict(ActionSpec.discrete(int(facts.pop("num_actions"))))
        facts["group_size"] = facts.pop("batch", facts.get("group_size", 0))
        observation = facts.pop("observation", None)
        spec = cls(
            **{
                **facts,
                "id": str(facts["id"]),
                "obs_shape": tuple(int(n) for n in facts["obs_shape"]),
                "obs_dtype": np.dtype(facts["obs_dtype"]),
                "actions": ActionSpec.load(facts["actions"]),
                "observation": None if observation is None else ObsSpec.load(observation),
            }
        )
        _check(spec)
        return spec


def _check(spec: EnvSpec) -> None:
    """ValueError for a spec that no environment has: it may come from a stranger, and sizes become allocations."""
    options = [n for n in spec.actions.choices if n != CONTINUOUS]
    parts = len(spec.actions.choices)
    counts = [*spec.obs_shape, *options, parts, spec.num_envs, spec.frame_stack, spec.frames_per_step]
    if not counts or not all(type(n) is int and 1 <= n < 2**31 for n in counts):
        raise ValueError("its sizes must be whole numbers above 0")
    if spec.obs_dtype not in (np.uint8, np.float32) or spec.kind not in get_args(ObsKind):
        raise ValueError(f"its observations are {spec.obs_dtype}, {spec.kind!r}")
    if (raw := spec.observation) is not None:
        size = int(raw.high[0] - raw.low[0]) + 1 if raw.space == "discrete" else math.prod(raw.shape)
        if size != math.prod(spec.obs_shape) or not {len(raw.low), len(raw.high)} <= {1, size}:
            raise ValueError(f"its observations have {size} numbers, those of the network {math.prod(spec.obs_shape)}")


class VecEnv(Protocol):
    """N environments stepped together; the caller may do other work between `send` and `recv`.

    If `spec.group_size` is not 0, `reset` and `recv` return the first `group_size` environments that are ready, `send`
    takes the actions for those, and the others keep running. N below is then `group_size`.
    """

    ids: Array | None
    """Indices of the environments that the last `reset` or `recv` returned; None: all, in order."""

    @property
    def spec(self) -> EnvSpec:
        """Observations, actions and counts of these environments."""

    def reset(self, seed: int | None = None) -> Array:
        """Abort all episodes, start new ones determined by `seed`, and return their first observations [N, ...]."""

    def send(self, actions: Array) -> None:
        """Start one step with actions [N, *spec.actions.flat_shape]: options from 0, continuous parts from -1 to 1."""

    def recv(self) -> StepBatch:
        """Finish the step that `send` started."""

    def close(self) -> None:
        """Free threads and processes; may be called twice."""


def env_seeds(seed: int, num_envs: int) -> list[int]:
    """Seeds of the environments: the first words of `SeedSequence(seed)`, below 2^31 because ALE takes int32.

    Not seed + i: two runs with neighbouring seeds would share all but one of their environments.
    """
    if seed < 0:
        raise UserError(f"seed must be >= 0, got {seed}")
    words = np.random.SeedSequence(seed).generate_state(num_envs)
    return [int(word) for word in words >> 1]
