"""Published scores of other implementations after 10M to 200M frames, each with its protocol."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from casa.atari57.games import reference

_DOPAMINE = "sticky actions 0.25, minimal action sets, returns of training episodes"
_CLEANBA = "sticky actions 0.25, 18 actions, a lost life does not end the episode"
PROTOCOLS: dict[str, str] = {
    "DQN (Dopamine)": _DOPAMINE,
    "IQN (Dopamine)": _DOPAMINE,
    "Rainbow (Dopamine)": _DOPAMINE,
    "Rainbow, IMPALA ResNet (Dopamine)": _DOPAMINE,
    "PPO (DreamerV3 repo)": "sticky actions 0.25, 18 actions, returns of training episodes",
    "IMPALA (moolib)": _CLEANBA,
    "IMPALA (Cleanba)": _CLEANBA,
    "PPO (Cleanba)": _CLEANBA,
    "PPO (CleanRL)": "no sticky actions, minimal action sets, a lost life ends the episode",
}
"""Agent -> protocol. Scores under different protocols are not comparable: on Breakout at 40M frames, 430 without
sticky actions are 194 with them."""


class Published(NamedTuple):
    """One row of `published.csv`: the mean score over seeds."""

    agent: str
    game: str
    frames: int
    score: float
    seeds: int


@cache
def _table() -> tuple[Published, ...]:
    with files("casa.atari57").joinpath("published.csv").open(encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return tuple(
            Published(row["agent"], row["game"], int(row["frames"]), float(row["score"]), int(row["seeds"]))
            for row in rows
        )


def frame_counts() -> list[int]:
    """The numbers of frames at which there are scores."""
    return sorted({row.frames for row in _table()})


def published(game: str, frames: int) -> list[Published]:
    """The scores of `game` (in any spelling) after exactly `frames` frames."""
    name = reference(game).game
    return [row for row in _table() if row.game == name and row.frames == frames]
