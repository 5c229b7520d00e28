"""The 57 games of the benchmark, and the normalization of their names."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from casa.errors import unknown

_ID = re.compile(r"^(?:ale/)?(.*?)(?:noframeskip|deterministic)?(?:-v\d+)?$", re.IGNORECASE)
_ALIASES = {"montezumasrevenge": "montezumarevenge"}


class Reference(NamedTuple):
    """One row of the score table: three reference scores, then four agents after 200M frames."""

    game: str
    random: float
    human: float
    world_record: float
    rainbow: float
    impala: float
    laser: float
    casa: float


def fold(name: str) -> str:
    """Normalized name: `ALE/MsPacman-v5`, `MsPacmanNoFrameskip-v4`, `Ms. Pac-Man`, `ms_pacman` -> `mspacman`."""
    match = _ID.match(name.strip())
    key = re.sub(r"[^a-z0-9]", "", match.group(1).casefold()) if match else ""
    return _ALIASES.get(key, key)


@cache
def _table() -> dict[str, Reference]:
    with files("casa.atari57").joinpath("scores.csv").open(encoding="utf-8") as file:
        rows = [
            Reference(row.pop("game"), **{column: float(score) for column, score in row.items()})
            for row in csv.DictReader(file)
        ]
    return {fold(row.game): row for row in rows}


GAMES: tuple[str, ...] = tuple(row.game for row in _table().values())
"""The 57 games, in alphabetical order, spelt as in `ALE/<game>-v5`."""


_FIVE = ("BattleZone", "DoubleDunk", "NameThisGame", "Phoenix", "Qbert")
SETS: dict[str, tuple[str, ...]] = {
    "atari57": GAMES,
    # Aitchison et al., "Atari-5: Distilling the Arcade Learning Environment down to Five Games" (ICML 2023, arXiv
    # 2210.02019), table of the subsets: the games whose scores predict the median over all 57 best.
    "atari5": _FIVE,
    "atari10": tuple(sorted((*_FIVE, "Amidar", "Bowling", "Frostbite", "KungFuMaster", "Riverraid"))),
    # Kaiser et al., "Model-Based Reinforcement Learning for Atari" (ICLR 2020): the Atari 100k benchmark.
    "atari26": (
        "Alien", "Amidar", "Assault", "Asterix", "BankHeist", "BattleZone", "Boxing", "Breakout", "ChopperCommand",
        "CrazyClimber", "DemonAttack", "Freeway", "Frostbite", "Gopher", "Hero", "Jamesbond", "Kangaroo", "Krull",
        "KungFuMaster", "MsPacman", "Pong", "PrivateEye", "Qbert", "RoadRunner", "Seaquest", "UpNDown",
    ),
}  # fmt: skip
"""Named sets of games."""


def is_game(name: str) -> bool:
    """Whether `name`, in any spelling, is one of GAMES."""
    return fold(name) in _table()


def reference(game: str) -> Reference:
    """The row of `game` (in any spelling): random, human and world-record scores, and the four agents'."""
    row = _table().get(fold(game))
    if row is None:
        raise unknown("game", game, GAMES)
    return row
