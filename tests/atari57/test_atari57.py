import math

import numpy as np
import pytest

from casa.atari57 import (
    ATARI5,
    GAMES,
    SETS,
    hns,
    is_game,
    predicted_median,
    read_published,
    reference,
    saber,
    summary,
)
from casa.errors import UserError

# As the paper prints them, in percent: mean and median HNS, mean and median SABER.
PRINTED = {
    "rainbow": (873.97, 230.99, 28.39, 4.92),
    "impala": (957.34, 191.82, 29.45, 4.31),
    "laser": (1741.36, 454.91, 36.78, 8.08),
    "casa": (1941.08, 246.36, 36.10, 10.29),
}


@pytest.mark.parametrize("agent", PRINTED)
def test_the_printed_means_and_medians_come_out(agent):
    found = summary({game: getattr(reference(game), agent) for game in GAMES})
    assert found.games == 57 and "VideoPinball 0" in found.random_table
    shown = (found.hns.mean, found.hns.median, found.saber.mean, found.saber.median)
    assert [100 * x for x in shown] == pytest.approx(PRINTED[agent], abs=0.02)


@pytest.mark.parametrize("agent", PRINTED)
def test_the_other_aggregates_are_their_definitions(agent):
    found = summary({game: getattr(reference(game), agent) for game in GAMES})
    for scale, aggregates in ((hns, found.hns), (saber, found.saber)):
        scores = sorted(scale(game, getattr(reference(game), agent)) for game in GAMES)
        assert aggregates.iqm == pytest.approx(np.mean(scores[14:43]))
        assert aggregates.optimality_gap == pytest.approx(sum(max(0.0, 1 - score) for score in scores) / 57)
        assert aggregates.above == sum(score > 1 for score in scores)


def test_another_table_of_random_scores_moves_the_mean():
    """The reason why the table is named: one game's random score changes the mean over 57 games."""
    row = reference("VideoPinball")
    other = (row.casa - 16256.9) / (row.human - 16256.9)
    assert abs(other - hns("VideoPinball", row.casa)) / 57 > 1


def test_sets_of_games():
    assert [len(SETS[name]) for name in ("atari5", "atari10", "atari26", "atari57")] == [5, 10, 26, 57]
    assert set(SETS["atari5"]) < set(SETS["atari10"])
    for games in SETS.values():
        assert len(set(games)) == len(games) and set(games) <= set(GAMES)


def test_five_games_predict_the_median():
    """Literal value of one agent; a human scores 100% to rounding of the weights, random play 0."""
    scores = {"battle zone": 18360, "DoubleDunk": -16.1, "NameThisGame": 5218, "Phoenix": 15052, "Qbert": 4593}
    assert set(ATARI5) == set(SETS["atari5"])
    assert predicted_median(scores, battle_zone_random=2360) == pytest.approx(0.522, abs=1e-3)
    assert predicted_median(scores) == pytest.approx(0.535, abs=1e-3)
    assert predicted_median({game: reference(game).human for game in GAMES}) == pytest.approx(
        (101 ** sum(ATARI5.values()) - 1) / 100
    )
    assert predicted_median({game: reference(game).random - 1 for game in ATARI5}) == 0
    assert math.isnan(predicted_median({**scores, "Qbert": math.nan}))
    with pytest.raises(UserError, match="twice"):
        predicted_median({**scores, "q*bert": 1.0, "qbert": 1.0})
    with pytest.raises(UserError, match=r"must be below the human score 37187\.5, got 40000"):
        predicted_median(scores, battle_zone_random=40_000)
    with pytest.raises(UserError, match="Qbert is missing"):
        predicted_median(dict.fromkeys(list(ATARI5)[:4], 1.0))


def test_published_scores_are_read_with_their_protocols(tmp_path):
    file = tmp_path / "published.csv"
    file.write_text("agent,game,frames,score,protocol\nX,ms pacman,10000000,2.5,sticky actions\n")
    assert read_published(file) == [("X", "MsPacman", 10_000_000, 2.5, "sticky actions")]
    file.write_text("agent,game,frames,score\nX,Pong,10000000,2.5\n")
    with pytest.raises(UserError, match="line 2: protocol is missing"):
        read_published(file)
    file.write_text("agent,game,frames,score,protocol\nX,Pong,many,2.5,sticky\n")
    with pytest.raises(UserError, match="cannot read the published scores"):
        read_published(file)


def test_scales_are_fractions():
    for game in GAMES:
        row = reference(game)
        assert hns(game, row.random) == 0 and saber(game, row.random) == 0
        assert hns(game, row.human) == pytest.approx(1) and saber(game, row.world_record) == pytest.approx(1)
    assert hns("Breakout", 1.7 + 2 * 28.8) == pytest.approx(2)


def test_saber_is_capped_and_hns_is_not():
    record = reference("Breakout").world_record
    assert saber("Breakout", 10 * record) == 2.0
    assert hns("Breakout", 10 * record) > 100
    assert saber("Breakout", -record) < 0


def test_the_table_is_the_corrected_one():
    assert len(GAMES) == len(set(GAMES)) == 57
    assert reference("CrazyClimber").human == 35829.4
    assert reference("VideoPinball").random == 0


@pytest.mark.parametrize(
    "name", ["MsPacman", "ms_pacman", "Ms. Pac-Man", "MS PACMAN", "ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"]
)
def test_any_spelling(name):
    assert is_game(name) and reference(name).game == "MsPacman"


def test_unknown_game_names_the_nearest():
    assert not is_game("Tetris")
    with pytest.raises(UserError, match="'Braekout' is unknown; did you mean 'Breakout'"):
        hns("Braekout", 1)


def test_summary_refuses_nothing_and_doubles():
    with pytest.raises(UserError, match="empty"):
        summary({})
    with pytest.raises(UserError, match="twice"):
        summary({"Pong": 1, "pong": 2})
