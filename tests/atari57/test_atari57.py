import pytest

from casa.atari57 import GAMES, hns, is_game, reference, saber, summary
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
    assert found.games == 57
    assert [100 * x for x in found[1:]] == pytest.approx(PRINTED[agent], abs=0.02)


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
