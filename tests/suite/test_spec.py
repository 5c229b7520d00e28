"""Which runs a suite has, and which suites share a directory."""

import pytest
from tests.support.made_suite import make_suite

from casa import atari57
from casa.errors import UserError
from casa.suite import spec


def test_sets_of_environments():
    name, envs, _ = spec.environments("atari57")
    assert name == "atari57" and len(envs) == 57 and "ALE/MontezumaRevenge-v5" in envs
    assert [env.split("/")[1].removesuffix("-v5") for env in envs] == list(atari57.GAMES)
    assert spec.environments("atari5")[1][0] == "ALE/BattleZone-v5"
    assert spec.environments("atari57", "pong, ms pacman")[1] == ("ALE/Pong-v5", "ALE/MsPacman-v5")
    assert spec.environments("CartPole-v1,Breakout")[1] == ("CartPole-v1", "ALE/Breakout-v5")
    assert spec.environments("CartPole-v1")[1] == ("CartPole-v1",)


def test_minatar_brings_its_settings():
    pytest.importorskip("minatar")
    _, envs, settings = spec.environments("minatar")
    assert "MinAtar/Breakout-v1" in envs and settings["preset"] == "laptop"


@pytest.mark.parametrize(
    ("wanted", "games", "words"),
    [
        ("atari57s", "", "did you mean 'atari57'?"),
        ("atari57", "Braekout", "did you mean 'Breakout'?"),
        ("atari5", "Pong", "--games names ALE/Pong-v5, which is not in atari5"),
    ],
)
def test_wrong_names_are_one_sentence(wanted, games, words):
    with pytest.raises(UserError) as error:
        spec.environments(wanted, games)
    assert words in str(error.value)


def test_a_suite_plans_its_own_seeds(tmp_path):
    runs = make_suite(seeds=(3, 4)).planned(tmp_path)
    assert [(run.env, run.seed) for run in runs[:2]] == [("ALE/Breakout-v5", 3), ("ALE/Pong-v5", 3)]
    assert {run.seed for run in runs} == {3, 4} and runs[0].settings["log.diagnostics_every"] == 0
    assert runs[0].path == tmp_path / "runs" / "casa" / "ALE-Breakout-v5" / "seed-3"


def test_to_a_file_and_back(tmp_path):
    suite = make_suite(evaluation=spec.Evaluation(5, "greedy", "best"))
    spec.save(suite, tmp_path)
    assert spec.load(tmp_path) == suite
    (tmp_path / spec.FILE).write_text("steps: [")
    with pytest.raises(UserError, match="cannot be read"):
        spec.load(tmp_path)
    with pytest.raises(UserError, match="holds no suite"):
        spec.load(tmp_path / "nowhere")


def test_suites_with_equal_settings_are_joined():
    found = spec.joined(make_suite(), make_suite(envs=("ALE/Qbert-v5",), seeds=(2,), name="atari5"), "a", "b")
    assert found.envs[-1] == "ALE/Qbert-v5" and found.seeds == (0, 1, 2) and found.name == "atari57+atari5"
    for change, words in (
        ({"steps": 7}, "steps 3000, but b has 7"),
        ({"settings": {"preset": "paper"}}, "preset 'laptop', but b has 'paper'"),
        ({"evaluation": spec.Evaluation(31)}, "evaluation.episodes 30, but b has 31"),
    ):
        with pytest.raises(UserError, match=words):
            spec.joined(make_suite(), make_suite(**change), "a", "b")
