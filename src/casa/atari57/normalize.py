"""Scores on a common scale: human-normalized (HNS) and world-record-normalized (SABER)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from casa import statistics
from casa.atari57.games import reference
from casa.errors import UserError

SABER_CAP = 2.0
RANDOM_TABLE = "random scores of the CASA paper (VideoPinball 0)"
"""The table of random scores behind HNS and SABER. Name it beside every mean: other tables have other scores."""


class Aggregates(NamedTuple):
    """Over games, as fractions: 1.0 is the human (HNS) or the world record (SABER)."""

    mean: float
    median: float
    iqm: float
    optimality_gap: float
    """Mean of 1 - min(score, 1)."""
    above: int
    """Games above 1.0."""


class Summary(NamedTuple):
    """Aggregates of both scales over `games` games, and the table of random scores that they rest on."""

    games: int
    hns: Aggregates
    saber: Aggregates
    random_table: str = RANDOM_TABLE


def hns(game: str, score: float) -> float:
    """HNS = (score - random) / (human - random), a fraction: 0 is random play, 1.0 the average human."""
    row = reference(game)
    return (score - row.random) / (row.human - row.random)


def saber(game: str, score: float) -> float:
    """SABER = min((score - random) / (world record - random), 2), a fraction: 1.0 is the world record."""
    row = reference(game)
    return min((score - row.random) / (row.world_record - row.random), SABER_CAP)


def summary(scores: Mapping[str, float]) -> Summary:
    """Aggregates of HNS and SABER over the given games; `scores` maps a game to its score."""
    if not scores:
        raise UserError("scores is empty; a summary needs the score of at least one game")
    named = {reference(game).game: score for game, score in scores.items()}
    if len(named) < len(scores):
        raise UserError(f"scores names a game twice in different spellings: {', '.join(scores)}")
    human, record = ({game: [scale(game, score)] for game, score in named.items()} for scale in (hns, saber))
    return Summary(len(named), _aggregates(human), _aggregates(record))


def _aggregates(by_game: Mapping[str, list[float]]) -> Aggregates:
    scores = statistics.padded(by_game)
    mean, median, iqm, gap, above = (float(metric(scores)) for metric in statistics.METRICS.values())
    return Aggregates(mean, median, iqm, gap, int(above))
