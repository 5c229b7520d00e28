"""Play episodes with a trained agent, and note what it sees, thinks and does at every step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import EnumMeta
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from casa.config.fields import AgentConfig
from casa.engines.seeds import seed_for
from casa.envs.types import Array
from casa.errors import UserError, describe
from casa.heads import HeadOutput
from casa.run.agent import Agent

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


class Part(NamedTuple):
    """A part of an action, with the names of its options; most environments have one part without a name."""

    name: str
    options: tuple[str, ...]


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
    """Probabilities of the options of all parts, one after the other; None for agents that act on Q alone."""
    q: npt.NDArray[np.float64] | None
    """Each option's share of Q; None for agents without Q."""
    entropy: float | None
    action: tuple[int, ...]
    """Index of the option taken in each part."""
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
            f"{agent.config.recipe} on {agent.spec.id}",
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

    def play(self, episodes: int = 1, steps: int = 2000, greedy: bool = False, seed: int = 0) -> Iterator[Moment]:
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
        obs, _ = self.env.reset(seed=seed)
        state, score, over, count = None, 0.0, "", 0
        while not over:
            frame = self.frame()
            action, state, out = self.agent.consider(obs, state, count == 0, greedy)
            obs, reward, terminated, truncated, _ = self.env.step(action)
            yield self._moment(frame, out, action, float(reward), score, episode)
            score, count = score + float(reward), count + 1
            over = "terminated" if terminated else "truncated" if truncated else "stopped" if count == limit else ""
        yield Moment(self.frame(), None, None, None, None, (), 0.0, score, episode, over)

    def _moment(
        self, frame: Array | None, out: HeadOutput, action: Any, reward: float, score: float, episode: int
    ) -> Moment:
        spec = self.agent.spec.actions
        acts_on_q = self.agent.config.agent.behaviour == "epsilon-greedy"
        return Moment(
            frame,
            float(out.v),
            None if acts_on_q else out.log_pi.double().exp().numpy(),
            None if out.q is None else out.q.double().numpy(),
            None if acts_on_q else float(out.entropy()),
            tuple(int(x) for x in np.ravel(action) - np.array(spec.starts)),
            reward,
            score,
            episode,
        )

    def frame(self) -> Array | None:
        """The picture of the environment now; None, with a note, if it gives none."""
        if self.note:
            return None
        try:
            picture = np.asarray(self.env.render())
        except Exception as error:
            self.note = f"{self.agent.spec.id} does not render: {describe(error)}"
            return None
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
            self.note = f"{self.agent.spec.id} renders {picture.dtype} {picture.shape}, no RGB picture"
            return None
        return picture.copy()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _unit(config: AgentConfig) -> str:
    rescaled = ", rescaled by h" if config.value_rescale else ""
    return f"rewards ({config.reward}), discount {config.discount:g}{rescaled}"


def parts_of(agent: Agent, env: gym.Env[Any, Any]) -> tuple[Part, ...]:
    """The parts of an action with the names of their options."""
    spec = agent.spec.actions
    if len(spec.choices) == 1:
        return (Part("", action_names(agent.spec.id, env, spec.choices[0], spec.starts[0])),)
    each = enumerate(zip(spec.choices, spec.starts, strict=True))
    return tuple(Part(f"part {d}", tuple(str(start + i) for i in range(count))) for d, (count, start) in each)


def action_names(id: str, env: gym.Env[Any, Any], count: int, start: int = 0) -> tuple[str, ...]:
    """Names of `count` actions: the environment's `get_action_meanings()` or `actions` (an enum), a table, numbers."""
    inner = env.unwrapped
    meanings = getattr(inner, "get_action_meanings", None)
    named = meanings() if callable(meanings) else ()
    enum = getattr(inner, "actions", None)
    if not named and isinstance(enum, EnumMeta):
        named = list(enum.__members__)
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
