"""The 57-game Atari benchmark: reference scores, HNS and SABER, aggregates over games, published scores.

All normalized scores are fractions: `hns("Breakout", 30.5) == 1.0`; the paper prints them times 100.

`scores.csv` is the table of the CASA paper after 200M frames, with three misprints corrected: the human score
of CrazyClimber (35829.4, printed 36829.4), LASER's Alien score in the SABER table and Rainbow's Jamesbond HNS.
It reproduces the printed means and medians within 0.02 percentage points. The random score of VideoPinball is 0
here, as in the paper. Other tables have 16256.9, which makes that game's HNS more than ten times as large and moves
the mean over games: name the table (`RANDOM_TABLE`) when comparing.
"""

from casa.atari57.games import GAMES, SETS, Reference, is_game, reference
from casa.atari57.normalize import (
    ATARI5,
    RANDOM_TABLE,
    SABER_CAP,
    Aggregates,
    Summary,
    hns,
    predicted_median,
    saber,
    summary,
)
from casa.atari57.publications import Published, read_published

__all__ = [
    "ATARI5",
    "GAMES",
    "RANDOM_TABLE",
    "SABER_CAP",
    "SETS",
    "Aggregates",
    "Published",
    "Reference",
    "Summary",
    "hns",
    "is_game",
    "predicted_median",
    "read_published",
    "reference",
    "saber",
    "summary",
]
