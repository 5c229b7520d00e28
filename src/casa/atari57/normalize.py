"""Scores on a common scale: human-normalized (HNS) and world-record-normalized (SABER)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import NamedTuple

from casa.atari57.games import reference
from casa.errors import UserError

SABER_CAP = 2.0


class Summary(NamedTuple):
    """Mean and median over games, as fractions (1.0 is the human, or the world record)."""

    games: int
    hns_mean: float
    hns_median: float
    saber_mean: float
    saber_median: float


def hns(game: str, score: float) -> float:
    """HNS = (score - random) / (human - random), a fraction: 0 is random play, 1.0 the average human."""
    row = reference(game)
    return (score - row.random) / (row.human - row.random)


def saber(game: str, score: float) -> float:
    """SABER = min((score - random) / (world record - random), 2), a fraction: 1.0 is the world record."""
    row = reference(game)
    return min((score - row.random) / (row.world_record - row.random), SABER_CAP)


def summary(scores: Mapping[str, float]) -> Summary:
    """Mean and median over the given games of HNS and SABER; `scores` maps a game to its score."""
    if not scores:
        raise UserError("scores is empty; a summary needs the score of at least one game")
    named = {reference(game).game: score for game, score in scores.items()}
    if len(named) < len(scores):
        raise UserError(f"scores names a game twice in different spellings: {', '.join(scores)}")
    human = [hns(game, score) for game, score in named.items()]
    record = [saber(game, score) for game, score in named.items()]
    return Summary(len(named), fmean(human), median(human), fmean(record), median(record))
