import json
from dataclasses import asdict

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

from casa.actions import ActionSpec
from casa.envs.spaces import action_spec, encoder
from casa.errors import UserError


@pytest.mark.parametrize(
    ("space", "kind", "shape"),
    [
        (Box(-1, 1, (4,)), "vector", (4,)),
        (Box(-1, 1, ()), "vector", (1,)),
        (Box(-1, 1, (2, 3)), "vector", (6,)),
        (Box(0, 255, (128,), np.uint8), "vector", (128,)),
        (Box(0, 255, (210, 160, 3), np.uint8), "image", (3, 210, 160)),
        (Box(0, 255, (3, 210, 160), np.uint8), "image", (3, 210, 160)),
        (Box(0, 255, (4, 84, 84), np.uint8), "image", (4, 84, 84)),
        (Box(0, 255, (84, 84), np.uint8), "image", (1, 84, 84)),
        (Box(0, 255, (7, 7, 3), np.uint8), "grid", (3, 7, 7)),
        (Box(0, 1, (10, 10, 4), bool), "grid", (4, 10, 10)),
        (Box(0, 1, (10, 10, 10), bool), "grid", (10, 10, 10)),
        (Box(0, 1, (4, 10, 10)), "grid", (4, 10, 10)),
        (Discrete(5, start=-2), "vector", (5,)),
    ],
)
def test_kinds_and_shapes(space, kind, shape):
    found = encoder(space, "x")
    assert (found.kind, found.shape) == (kind, shape)
    encoded = found.encode(np.stack([space.sample() for _ in range(3)]))
    assert encoded.shape == (3, *shape) and encoded.dtype == found.dtype
    assert found.dtype == (np.uint8 if kind == "image" else np.float32)


def test_channels_move_to_the_front():
    grid = np.zeros((1, 10, 10, 4), bool)
    grid[0, 2, 7, 3] = True
    encoded = encoder(Box(0, 1, (10, 10, 4), bool), "x").encode(grid)
    assert encoded[0, 3, 2, 7] == 1 and encoded.sum() == 1


def test_one_hot_counts_from_start():
    encoded = encoder(Discrete(3, start=4), "x").encode(np.array([4, 6]))
    np.testing.assert_array_equal(encoded, [[1, 0, 0], [0, 0, 1]])


def test_bounded_integers_are_scaled_and_others_are_not():
    space = Box(np.array([0, -4, np.iinfo(np.int32).min]), np.array([10, 4, np.iinfo(np.int32).max]), dtype=np.int32)
    encoded = encoder(space, "x").encode(np.array([[5, 4, 123]], np.int32))
    np.testing.assert_array_equal(encoded, np.array([[0.5, 1.0, 123.0]], np.float32))
    np.testing.assert_array_equal(encoder(Box(0, 10, (1,)), "x").encode(np.array([[5.0]])), [[5.0]])


def test_what_cannot_be_read_or_acted_in_is_named():
    with pytest.raises(UserError, match=r"x: action space Text\(.*\) is not supported; CASA acts in Discrete\(n\)"):
        action_spec(Text(3), "x")
    with pytest.raises(UserError, match=r"observation space Dict.* is not supported; .*\['a'\].*TransformObservation"):
        encoder(Dict(a=Discrete(2)), "x")
    with pytest.raises(UserError, match=r"observation space Text.* is not supported; CASA reads Box and Discrete"):
        encoder(Text(3), "x")
    with pytest.raises(UserError, match="4 axes"):
        encoder(Box(0, 1, (2, 2, 2, 2)), "x")
    with pytest.raises(UserError, match="holds no numbers"):
        encoder(Box(0, 1, (0,)), "x")


def test_actions_are_choices_that_the_environment_counts_and_shapes():
    one = action_spec(Discrete(4, start=2), "x")
    assert one == ActionSpec.discrete(4, 2) and (one.choices, one.starts, one.flat_shape) == ((4,), (2,), ())
    several = action_spec(MultiDiscrete([[2, 3], [4, 5]]), "x")
    assert (several.choices, several.starts, several.flat_shape) == ((2, 3, 4, 5), (0, 0, 0, 0), (4,))
    assert several.width() == 14
    assert several.to_env(np.array([[1, 2, 3, 4]])).tolist() == [[[1, 2], [3, 4]]]
    flags = action_spec(MultiBinary(3), "x")
    assert (flags.choices, flags.flat_shape, flags.shape) == ((2, 2, 2), (3,), (3,))
    assert [str(spec) for spec in (one, several, flags)] == ["4 actions", "2 x 3 x 4 x 5 actions", "3 binary actions"]
    for spec in (one, several, flags):
        drawn = spec.random(np.random.default_rng(0), 500)
        spec.check(drawn, 500)
        assert drawn.reshape(500, -1).max(0).tolist() == [count - 1 for count in spec.choices]
        assert ActionSpec.load(json.loads(json.dumps(asdict(spec)))) == spec
