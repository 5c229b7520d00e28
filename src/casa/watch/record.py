"""Play episodes with a trained agent, and note what it sees, thinks and does at every step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import EnumMeta
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from casa.actions import CONTINUOUS, ActionSpec, Knots
from casa.config.fields import AgentConfig
from casa.envs.types import Array, EnvError
from casa.errors import UserError, describe, printable
from casa.heads import HeadOutput
from casa.rollout.behaviour import BEHAVIOURS
from casa.run.agent import Agent
from casa.runtime.seeds import seed_for

NAMES = {
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "none", "right"),
    "Acrobot": ("torque -1", "none", "torque +1"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "Blackjack": ("stick", "hit"),
}
"""Names of the actions of environments that do not name them, by id without its version."""
MINATAR = ("none", "left", "up", "right", "down", "fire")


class Part(NamedTuple):
    """A part of an action, with the names of its options; most environments have one part without a name.

    The options of a continuous part are its knots, named by their values.
    """

    name: str
    options: tuple[str, ...]
    continuous: bool = False

    def chosen(self, index: float) -> str:
        """The name of an option, or the value between the knots."""
        if not self.continuous:
            return self.options[round(index)]
        low, high = float(self.options[0]), float(self.options[-1])
        return f"{low + (high - low) * index / (len(self.options) - 1):.3g}"


@dataclass(frozen=True)
class Cast:
    """Who plays what: the same for all steps of a recording."""

    title: str
    agent: str
    step: int
    parts: tuple[Part, ...]
    fps: float
    unit: str
    """What V and Q are counted in."""


class Moment(NamedTuple):
    """One step t: what was seen, what the agent made of it, what it did, and what came of it.

    The last moment of an episode has its final frame alone: v, pi and q are None and `action` is empty.
    """

    frame: Array | None
    """RGB, uint8 [H, W, 3]; None if the environment does not render."""
    v: float | None
    pi: npt.NDArray[np.float64] | None
    """Probabilities of the options of all parts, one after the other; of a continuous part, densities on [-1, 1] at
    the knots. None for agents that act on Q alone."""
    q: npt.NDArray[np.float64] | None
    """Each option's share of Q; None for agents without Q."""
    entropy: float | None
    action: tuple[float, ...]
    """Index of the option taken in each part; between the knots of a continuous part it is fractional."""
    reward: float
    """What the action gave."""
    score: float
    """Return of the episode before the action."""
    episode: int
    over: str = ""
    """terminated, truncated or stopped (by the limit of steps) in an episode's last moment."""


class Stage:
    """An agent and one environment of its run, made to render."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.note = ""
        self.env = self._make()
        self.cast = Cast(
            printable(f"{agent.config.recipe} on {agent.spec.id}"),
            f"{agent.config.agent.head} head",
            agent.step,
            parts_of(agent, self.env),
            frames_per_second(agent, self.env),
            _unit(agent.config.agent),
        )

    def _make(self) -> gym.Env[Any, Any]:
        try:
            return self.agent.make_env(render_mode="rgb_array")
        except UserError:
            raise
        except Exception as error:  # a constructor of the user's own that takes no render_mode
            self.note = f"{self.agent.spec.id} cannot be made to render: {describe(error)}"
            return self.agent.make_env()

    def play(self, episodes: int = 1, steps: int = 1000, greedy: bool = False, seed: int = 0) -> Iterator[Moment]:
        """Play `episodes`, at most `steps` agent steps in all (0: no limit)."""
        for name, value, least in (("episodes", episodes, 1), ("steps", steps, 0), ("seed", seed, 0)):
            if value < least:
                raise UserError(f"{name} must be >= {least}, got {value}")
        run = self.agent.config.seed
        self.agent.seed(seed_for(run, "watched actions", seed))
        left = steps or None
        for episode in range(episodes):
            word = seed_for(run, "watched starts", seed, episode) % 2**31
            for moment in self._episode(word, greedy, episode, left):
                yield moment
                if left is not None and not moment.over:
                    left -= 1
            if left == 0:
                return

    def _episode(self, seed: int, greedy: bool, episode: int, limit: int | None) -> Iterator[Moment]:
        obs, _ = self._ask("reset", lambda: self.env.reset(seed=seed))
        state, score, over, count = None, 0.0, "", 0
        while not over:
            frame = self.frame(obs)
            action, state, out = self.agent.consider(obs, state, count == 0, greedy)
            obs, reward, terminated, truncated, _ = self._ask("step", partial(self.env.step, action))
            yield self._moment(frame, out, action, float(reward), score, episode)
            score, count = score + float(reward), count + 1
            over = "terminated" if terminated else "truncated" if truncated else "stopped" if count == limit else ""
        yield Moment(self.frame(obs), None, None, None, None, (), 0.0, score, episode, over)

    def _ask(self, call: str, function: Callable[[], Any]) -> Any:
        """Return function(); an exception in the environment becomes an EnvError."""
        try:
            return function()
        except Exception as error:
            raise EnvError(f"{self.agent.spec.id}: {call} raised {describe(error)}") from error

    def _moment(
        self, frame: Array | None, out: HeadOutput, action: Any, reward: float, score: float, episode: int
    ) -> Moment:
        flat = np.ravel(self.agent.spec.actions.from_env(action)).tolist()
        acts_on_q = BEHAVIOURS[self.agent.config.agent.behaviour].needs_q
        return Moment(
            frame,
            float(out.v),
            None if acts_on_q else out.drawn().double().numpy(),
            None if (q := out.drawn_q()) is None else q.double().numpy(),
            None if acts_on_q else float(out.entropy()),
            tuple(
                float(np.clip((x + 1) / 2, 0, 1)) * (len(part.options) - 1) if part.continuous else x
                for x, part in zip(flat, self.cast.parts, strict=True)
            ),
            reward,
            score,
            episode,
        )

    def frame(self, obs: Any) -> Array | None:
        """The picture of the environment now; if it gives none, `obs` if that is an image, else None, with a note."""
        if not self.note:
            try:
                rendered = self.env.render()
                if (picture := as_picture(rendered)) is not None:
                    return picture
                self.note = f"{self.agent.spec.id} renders no RGB picture but {type(rendered).__name__}"
            except Exception as error:
                self.note = f"{self.agent.spec.id} does not render: {describe(error)}"
        if self.agent.spec.kind != "image":
            return None
        # A stack of frames has its channels first, the newest frame last.
        array = np.asarray(obs)
        return as_picture(array[-1] if array.ndim == 3 and array.shape[0] < array.shape[2] else array)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def as_picture(rendered: Any) -> Array | None:
    """RGB, uint8 [H, W, 3], from that, from colours between 0 and 1, or from gray pixels; None from anything else."""
    picture = np.asarray(rendered)
    if picture.dtype.kind == "f" and picture.size and picture.min() >= 0 and picture.max() <= 1:
        picture = (255 * picture).round().astype(np.uint8)
    if picture.ndim == 2 or (picture.ndim == 3 and picture.shape[-1] == 1):
        picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, -1)
    return picture.copy() if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3 else None


def _unit(config: AgentConfig) -> str:
    rescaled = ", rescaled by h" if config.value_rescale else ""
    return f"rewards ({config.reward}), discount {config.discount:g}{rescaled}"


def parts_of(agent: Agent, env: gym.Env[Any, Any]) -> tuple[Part, ...]:
    """The parts of an action with the names of their options."""
    spec = agent.spec.actions
    if spec.kind == "discrete":
        return (Part("", action_names(agent.spec.id, env, spec.choices[0], spec.starts[0])),)
    knots = [part.count for part in agent.network.sizes or () if isinstance(part, Knots)]
    return tuple(_parts(spec, "", max(knots, default=0)))


def _parts(spec: ActionSpec, name: str, knots: int) -> Iterator[Part]:
    for label, inner in zip(spec.names or map(str, range(len(spec.parts))), spec.parts, strict=True):
        yield from _parts(inner, f"{name}{label} ", knots)
    if spec.parts:
        return
    for d, (count, start) in enumerate(zip(spec.choices, spec.starts, strict=True)):
        own = f"{name}{d}" if len(spec.choices) > 1 else name.strip() or "action"
        if count == CONTINUOUS:
            yield Part(own, tuple(f"{x:.3g}" for x in np.linspace(spec.low[d], spec.high[d], knots)), True)
        else:
            yield Part(own, tuple(str(start + i) for i in range(count)))


def action_names(id: str, env: gym.Env[Any, Any], count: int, start: int = 0) -> tuple[str, ...]:
    """Names of `count` actions: the environment's `get_action_meanings()` or `actions` (an enum), a table, numbers."""
    inner = env.unwrapped
    meanings = getattr(inner, "get_action_meanings", None)
    named = meanings() if callable(meanings) else ()
    enum = getattr(inner, "actions", None)
    if not named and isinstance(enum, EnumMeta):
        named = list(enum.__members__)
    if id.startswith("MinAtar/") and hasattr(inner, "action_set"):
        named = [MINATAR[index] for index in inner.action_set]
    named = named or NAMES.get(id.rpartition("/")[2].partition("-v")[0], ())
    if len(named) != count:
        return tuple(str(start + i) for i in range(count))
    return tuple(_words(str(name)) for name in named)


def _words(name: str) -> str:
    """`UPLEFTFIRE` -> `up left fire`, `turn_left` -> `turn left`."""
    joystick = re.findall("NOOP|FIRE|UP|DOWN|LEFT|RIGHT", name)
    return (" ".join(joystick) if "".join(joystick) == name else name.replace("_", " ")).lower()


def frames_per_second(agent: Agent, env: gym.Env[Any, Any]) -> float:
    """Agent steps per second at the environment's own speed: 60 frames of an Atari game, else its `render_fps`."""
    if agent.spec.frames_per_step > 1 or agent.spec.atari_game is not None:
        return 60 / agent.spec.frames_per_step
    return min(max(float(env.metadata.get("render_fps") or 15), 1.0), 60.0)
