import gymnasium as gym
import numpy as np
import pytest
from tests.support.runs import ATARI, run

import casa
from casa.errors import UserError
from casa.runtime.seeds import seed_for
from casa.watch.record import Stage, action_names, as_picture, frames_per_second


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    brief = {"steps": 80}
    found = {name: run(name, folder / name, **brief) for name in ("casa", "ppo", "r2d2")}
    found["lstm"] = run("casa", folder / "lstm", **brief, **{"net.lstm": 8})
    own = {"env": "tests.support.tiny_envs:Buttons", "net.backbone": "grid"}
    found["parts"] = run("casa", folder / "parts", **brief, **own)
    found["box"] = run("casa", folder / "box", **brief, env="Pendulum-v1")
    found["atari"] = run("casa", folder / "atari", **{**ATARI, "steps": 40})
    return found


def staged(path, **options):
    return Stage(casa.load(path, trust=True, **options))


def test_a_moment_is_what_the_agent_computes(runs):
    agent = casa.load(runs["casa"])
    stage = staged(runs["casa"])
    moments = list(stage.play(steps=30))
    env = agent.make_env()
    obs, _ = env.reset(seed=_start(stage))
    for moment in moments[:-1]:
        _, _, out = agent.consider(obs)
        assert moment.v == pytest.approx(float(out.v))
        assert np.allclose(moment.pi, out.log_pi.exp()) and np.allclose(moment.q, out.q)
        assert moment.pi.sum() == pytest.approx(1)
        assert (moment.pi @ moment.q) == pytest.approx(moment.v, abs=1e-4), "V is the mean of Q under π"
        assert moment.frame.shape == (400, 600, 3)
        obs, reward, *_ = env.step(moment.action[0])
        assert moment.reward == reward
    assert [moment.score for moment in moments] == list(range(len(moments)))
    assert moments[-1].over in ("terminated", "stopped") and moments[-1].v is None
    assert stage.cast.parts[0].options == ("left", "right") and stage.cast.fps == 50
    stage.close()


def _start(stage, episode=0):
    return seed_for(stage.agent.config.seed, "watched starts", 0, episode) % 2**31


def test_a_recurrent_agent_keeps_its_state_within_an_episode_alone(runs):
    agent, stage = casa.load(runs["lstm"]), staged(runs["lstm"])
    moments = list(stage.play(episodes=2, steps=0))
    assert [m.episode for m in moments if m.over] == [0, 1]
    env, state, forgetful = agent.make_env(), None, []
    obs, _ = env.reset(seed=_start(stage))
    for moment in (m for m in moments if m.episode == 0 and not m.over):
        forgetful.append(float(agent.consider(obs)[2].v) == pytest.approx(moment.v, abs=1e-6))
        _, state, out = agent.consider(obs, state)
        assert moment.v == pytest.approx(float(out.v), abs=1e-6)
        obs, *_ = env.step(moment.action[0])
    assert forgetful[0] and not any(forgetful[1:]), "without its state the agent sees something else, but at the start"
    first = next(m for m in moments if m.episode == 1)
    obs, _ = env.reset(seed=_start(stage, 1))
    assert first.v == pytest.approx(float(agent.consider(obs)[2].v), abs=1e-6)
    stage.close()


def test_each_agent_shows_what_it_has(runs):
    ppo, r2d2 = (next(staged(runs[name]).play(steps=1)) for name in ("ppo", "r2d2"))
    assert ppo.q is None and ppo.pi is not None and ppo.entropy is not None
    assert r2d2.q is not None and r2d2.pi is None and r2d2.entropy is None


def test_an_action_of_several_parts(runs):
    stage = staged(runs["parts"])
    sizes = [len(part.options) for part in stage.cast.parts]
    moment = next(stage.play(steps=1))
    assert len(sizes) > 1 and len(moment.action) == len(sizes)
    assert len(moment.pi) == len(moment.q) == sum(sizes)
    assert moment.pi.sum() == pytest.approx(len(sizes))
    assert moment.frame is None and "tests.support" in stage.note, "it does not render, and says so"
    stage.close()


def test_a_continuous_action_is_a_place_between_knots(runs):
    stage = staged(runs["box"])
    (part,) = stage.cast.parts
    assert part.continuous and (part.options[0], part.options[-1]) == ("-2", "2")
    agent = casa.load(runs["box"])
    env = agent.make_env()
    obs, _ = env.reset(seed=_start(stage))
    for moment in list(stage.play(steps=5))[:-1]:
        _, _, out = agent.consider(obs)
        assert np.allclose(moment.pi, out.log_pi.exp()) and np.allclose(moment.q, out.q)
        taken = -2 + 4 * moment.action[0] / (len(part.options) - 1)
        assert -2 <= taken <= 2 and float(part.chosen(moment.action[0])) == pytest.approx(taken, rel=0.01, abs=0.01)
        obs, reward, *_ = env.step(np.array([taken], np.float32))
        assert reward == pytest.approx(moment.reward, abs=1e-4), "the action that was taken"
    stage.close()


def test_atari_is_shown_in_colour_with_its_action_names(runs):
    stage = staged(runs["atari"])
    moments = list(stage.play(steps=5))
    assert moments[3].frame.shape == (210, 160, 3)
    assert stage.cast.parts[0].options[1:3] == ("fire", "up") and "up left fire" in stage.cast.parts[0].options
    assert stage.cast.fps == 15
    assert [m.over for m in moments] == [""] * 5 + ["stopped"]
    stage.close()


def test_the_same_seed_gives_the_same_recording(runs):
    def played(seed):
        return [(m.v, m.action) for m in staged(runs["casa"]).play(steps=20, seed=seed)]

    assert played(1) == played(1) != played(2)


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"steps": -1}, {"seed": -1}])
def test_wrong_numbers_are_user_errors(runs, wrong):
    (name,) = wrong
    with pytest.raises(UserError, match=f"{name} must be >="):
        list(staged(runs["casa"]).play(**wrong))


def test_pictures_of_every_kind():
    colour = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert (as_picture(colour) == colour).all() and as_picture(colour) is not colour
    assert (as_picture(colour / 255) == colour).all(), "MinAtar has colours from 0 to 1"
    assert (as_picture(colour[..., 0]) == colour[..., :1]).all() and as_picture(colour[..., :1]).shape == (2, 4, 3)
    for other in (None, "text", [1, 2], np.zeros((2, 4, 4), np.uint8), np.full((2, 4, 3), -1.0)):
        assert as_picture(other) is None


def test_an_image_stands_in_for_a_missing_picture(tmp_path):
    own = {"env": "tests.support.tiny_envs:Picture", "net.backbone": "impala-shallow"}
    stage = staged(run("casa", tmp_path / "run", steps=40, **own))
    moments = list(stage.play(steps=3))
    assert moments[0].frame.shape == (24, 20, 3) and "render_mode" in stage.note
    assert (moments[1].frame != moments[0].frame).any(), "the newest frame of the stack"
    stage.close()


def test_an_environment_that_fails_is_one_sentence(runs):
    stage = staged(runs["casa"])
    stage.env.step = lambda action: 1 / 0
    with pytest.raises(UserError, match="CartPole-v1: step raised ZeroDivisionError"):
        list(stage.play())


def test_names_of_actions():
    cart = gym.make("CartPole-v1")
    assert action_names("CartPole-v1", cart, 2) == ("left", "right")
    assert action_names("Elsewhere-v0", cart, 2, start=3) == ("3", "4")
    minatar = pytest.importorskip("minatar.gym")
    game = minatar.BaseEnv("breakout", use_minimal_action_set=True)
    assert action_names("MinAtar/Breakout-v1", game, 3) == ("none", "left", "right")
    assert action_names("CartPole-v1", cart, 3) == ("0", "1", "2"), "a table that does not fit is not used"


def test_an_environment_without_a_speed_gets_a_usual_one(runs):
    stage = staged(runs["parts"])
    assert frames_per_second(stage.agent, stage.env) == 15
