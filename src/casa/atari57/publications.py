"""Published scores of other agents, from a file of the user's own, each with its protocol."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from casa.atari57.games import reference
from casa.errors import UserError


class Published(NamedTuple):
    """One row of the file: the mean score of an agent in a game after some frames, and how it was obtained."""

    agent: str
    game: str
    frames: int
    score: float
    protocol: str


def read_published(file: Path) -> list[Published]:
    """The rows of a CSV file with the columns agent, game, frames, score and protocol; games in any spelling."""
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            return [_row(row, file, number) for number, row in enumerate(csv.DictReader(lines), 2)]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the published scores {file}: {reason}") from None


def _row(row: dict[str, str], file: Path, number: int) -> Published:
    for name in Published._fields:
        if not row.get(name):
            raise UserError(f"{file}, line {number}: {name} is missing; columns are {', '.join(Published._fields)}")
    game = reference(row["game"]).game
    return Published(row["agent"], game, int(row["frames"]), float(row["score"]), row["protocol"])
