"""Scores on a common scale: human-normalized (HNS) and world-record-normalized (SABER)."""

from __future__ import annotations

import math
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
    named = _by_game(scores)
    human, record = ({game: [scale(game, score)] for game, score in named.items()} for scale in (hns, saber))
    return Summary(len(named), _aggregates(human), _aggregates(record))


ATARI5 = {"BattleZone": 0.38198, "DoubleDunk": 0.06791, "NameThisGame": 0.31080, "Phoenix": 0.12413, "Qbert": 0.08049}
"""The weights of Aitchison et al., "Atari-5" (ICML 2023), of the regression for the median over all 57 games."""


def predicted_median(scores: Mapping[str, float], battle_zone_random: float | None = None) -> float:
    """Median HNS over 57 games, predicted from five, as a fraction; in percent: 10^(Σ c log₁₀(1 + max(0, HNS))) - 1.

    `scores` maps the games of `ATARI5`, and perhaps others, to scores. The regression was fitted with a random score of
    2,360 in BattleZone. This package's table has the paper's 236; `battle_zone_random` replaces that.
    """
    named = _by_game(scores)
    human = reference("BattleZone").human
    if battle_zone_random is not None and not battle_zone_random < human:
        raise UserError(f"battle_zone_random must be below the human score {human:g}, got {battle_zone_random:g}")
    if missing := [game for game in ATARI5 if game not in named]:
        raise UserError(f"the prediction needs the scores of {', '.join(ATARI5)}; {', '.join(missing)} is missing")
    total = 0.0
    for game, weight in ATARI5.items():
        scaled = hns(game, named[game])
        if game == "BattleZone" and battle_zone_random is not None:
            scaled = (named[game] - battle_zone_random) / (human - battle_zone_random)
        total += weight * (math.nan if math.isnan(scaled) else math.log10(1 + max(0.0, 100 * scaled)))
    return (10**total - 1) / 100


def _by_game(scores: Mapping[str, float]) -> dict[str, float]:
    """`scores` with each game in its usual spelling."""
    named = {reference(game).game: score for game, score in scores.items()}
    if len(named) < len(scores):
        raise UserError(f"scores names a game twice in different spellings: {', '.join(scores)}")
    return named


def _aggregates(by_game: Mapping[str, list[float]]) -> Aggregates:
    scores = statistics.padded(by_game)
    mean, median, iqm, gap, above = (float(metric(scores)) for metric in statistics.METRICS.values())
    return Aggregates(mean, median, iqm, gap, int(above))
