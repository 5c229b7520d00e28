"""Atari in colour beside the agent's gray frames."""

import numpy as np
import pytest

from casa.config.env import EnvConfig
from casa.envs.single import single_env
from casa.errors import UserError


def play(env, actions, seed=5):
    env.reset(seed=seed)
    frames = [env.render()]
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        frames.append(env.render())
    return np.stack(frames)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_the_colours_follow_the_agents_game(sticky):
    config = EnvConfig(id="Breakout", sticky=sticky)
    env = single_env(config, render_mode="rgb_array")
    assert env.get_action_meanings()[:3] == ["NOOP", "FIRE", "UP"]
    rng = np.random.default_rng(0)
    frames = play(env, rng.integers(0, 18, 400))  # several episodes; `step` compares reward and end each time
    assert frames.shape == (401, 210, 160, 3) and frames.dtype == np.uint8
    assert (frames[..., 0] != frames[..., 2]).any(), "the bricks are red and blue"
    # The agent's newest frame is the same picture, smaller and gray.
    obs, _ = env.reset(seed=3)
    for action in (1, 3, 3, 3):
        obs, *_ = env.step(action)
    small = env.render().mean(-1).reshape(30, 7, 20, 8).mean((1, 3))
    seen = obs[-1].astype(float).repeat(5, 0).repeat(5, 1).reshape(30, 14, 20, 21).mean((1, 3))
    assert np.corrcoef(small.ravel(), seen.ravel())[0, 1] > 0.98
    env.close()


def test_a_game_that_ran_apart_would_be_noticed():
    env = single_env(EnvConfig(id="Breakout"), render_mode="rgb_array")
    env.reset(seed=1)
    env.screen.reset(2)
    env.screen.step(np.array([1]))
    with pytest.raises(RuntimeError, match="plays another game"):
        _play_until_it_fails(env)
    env.close()


def _play_until_it_fails(env):
    for action in np.random.default_rng(0).integers(0, 18, 1000):
        assert not env.step(action)[2]


def test_other_kinds_of_rendering_are_a_user_error():
    with pytest.raises(UserError, match="'human' has no effect on Atari"):
        single_env(EnvConfig(id="Breakout"), render_mode="human")
    env = single_env(EnvConfig(id="Breakout"))
    assert env.render() is None
    env.close()
