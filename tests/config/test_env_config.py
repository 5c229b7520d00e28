import dataclasses

import pytest

from casa.envs import EnvConfig
from casa.errors import UserError


def test_the_defaults_are_the_papers_protocol():
    config = EnvConfig()
    assert (config.sticky, config.frame_skip, config.frame_stack, config.frame_size) == (0.0, 4, 4, 84)
    assert config.grayscale and config.max_pool and config.full_action_space
    assert not config.episodic_life and not config.fire_reset
    assert (config.noop_max, config.max_frames, config.num_envs) == (30, 108_000, 160)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("num_envs", 0, "env.num_envs must be an integer from 1 to 100000, got 0"),
        ("frame_skip", 0, "env.frame_skip must be an integer from 1 to 100, got 0"),
        ("frame_skip", 2.5, "env.frame_skip must be an integer from 1 to 100, got 2.5"),
        ("frame_stack", True, "env.frame_stack must be an integer from 1 to 32, got True"),
        ("sticky", 1.0, "env.sticky must be at least 0 and below 1, got 1"),
        ("sticky", float("nan"), "env.sticky must be at least 0 and below 1, got nan"),
        ("noop_max", -1, "env.noop_max must be an integer from 0 to 10000, got -1"),
        ("grayscale", "no", "env.grayscale must be true or false, got 'no'"),
        ("id", " ", "env.id must be a name"),
        ("vectorization", "asink", "env.vectorization must be .* got 'asink'; did you mean 'async'?"),
        ("kwargs", {"a": 1}, "env.kwargs must be text"),
    ],
)
def test_each_field_is_checked_when_the_configuration_is_built(field, value, text):
    with pytest.raises(UserError, match=text):
        EnvConfig(**{field: value})
    with pytest.raises(UserError, match=text):
        dataclasses.replace(EnvConfig(), **{field: value})
