from importlib.metadata import EntryPoint

import pytest

from casa.atari57 import GAMES
from casa.envs import list_envs
from casa.envs.names import EnvId, display_name, resolve, roms
from casa.errors import UserError


@pytest.mark.parametrize(
    "name",
    ["ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "MsPacman", "mspacman", "ms_pacman", "Ms Pacman", "Ms. Pac-Man"],
)
def test_every_spelling_of_a_game(name):
    assert resolve(name) == EnvId("atari", "ms_pacman")


@pytest.mark.parametrize("name", ["Breakout-v0", "BreakoutDeterministic-v4", "breakoutnoframeskip-V4", " Breakout "])
def test_versions_name_the_game_only(name):
    assert resolve(name) == EnvId("atari", "breakout")


def test_all_games_of_the_benchmark_have_a_rom():
    assert {display_name(resolve(game).name) for game in GAMES} == set(GAMES)
    assert "joust" not in roms().values()  # for two players only


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole-v0", "CartPole-v0"),
        ("cartpole", "CartPole-v1"),
        ("Blackjack-v1", "Blackjack-v1"),
    ],
)
def test_gymnasium_ids(name, found):
    assert resolve(name) == EnvId("gym", found)


def test_a_game_that_people_spell_otherwise():
    assert resolve("Montezuma's Revenge") == EnvId("atari", "montezuma_revenge")


def test_a_plain_name_that_both_have_is_the_game():
    assert resolve("Blackjack") == EnvId("atari", "blackjack")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Braekout", "'Breakout'"),
        ("ALE/Braekout-v5", "'ALE/Breakout-v5'"),
        ("BraekoutNoFrameskip-v4", "'Breakout'"),
        ("CartPoel-v1", "'CartPole-v1'"),
        ("CartPol", "'CartPole-v1'"),
        ("montezuma", "'MontezumaRevenge'"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(UserError, match=f"env.id '{name}' is unknown; did you mean {near}"):
        resolve(name)


def test_nothing_near():
    with pytest.raises(UserError, match="casa envs"):
        resolve("qqqqqqqqqqqqqqqqqqqqq")


def test_list_envs():
    found = list_envs()
    assert found.atari57 == sorted(GAMES)
    assert "Tetris" in found.atari and not set(found.atari) & set(GAMES)
    listed = {entry.id: entry for group in found.gymnasium.values() for entry in group}
    assert "CartPole-v1" in {entry.id for entry in found.gymnasium["classic_control"]}
    assert listed["CartPole-v1"].usable and listed["CartPole-v1"].note == "2 actions, vector observations"
    assert listed["Pendulum-v1"].usable and listed["Pendulum-v1"].note == "1 continuous action, vector observations"
    assert listed["Blackjack-v1"].usable is False and "observation space Tuple" in listed["Blackjack-v1"].note
    assert "CartPole-v0" not in listed and not any(name.startswith("ALE/") for name in listed)


def test_ids_of_an_installed_package_are_registered_when_they_are_named():
    """MinAtar declares its ids in the entry-point group gymnasium.envs, which Gymnasium does not read."""
    pytest.importorskip("minatar")
    assert resolve("MinAtar/Breakout-v1") == ("gym", "MinAtar/Breakout-v1")
    assert resolve("minatar/spaceinvaders") == ("gym", "MinAtar/SpaceInvaders-v1")
    with pytest.raises(UserError, match="did you mean 'MinAtar/Asterix-v1'"):
        resolve("MinAtar/Asterisk-v1")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("casa.envs.names.entry_points", lambda group: [])
    monkeypatch.setattr("casa.envs.names.gym_ids", lambda: ["CartPole-v1"])
    with pytest.raises(UserError, match=r"needs MinAtar; pip install 'casa-rl\[minatar\]'"):
        resolve("MinAtar/Breakout-v1")


def test_a_package_that_cannot_register_is_a_warning(monkeypatch):
    broken = EntryPoint("Broken", "casa.errors:nothing", "gymnasium.envs")
    monkeypatch.setattr("casa.envs.names.entry_points", lambda group: [broken])
    with pytest.warns(UserWarning, match="casa.errors:nothing cannot register"), pytest.raises(UserError):
        resolve("Broken/Env-v0")
