import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from casa.envs.spaces import encoder, num_actions
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
    with pytest.raises(UserError, match=r"x: action space Box\(.*\) is continuous; CASA needs discrete actions"):
        num_actions(Box(-1, 1, (2,)), "x")
    with pytest.raises(UserError, match=r"MultiDiscrete.* is not Discrete"):
        num_actions(MultiDiscrete([2, 3]), "x")
    with pytest.raises(UserError, match=r"observation space Dict.* is not supported; .*FlattenObservation"):
        encoder(Dict(a=Discrete(2)), "x")
    with pytest.raises(UserError, match="4 axes"):
        encoder(Box(0, 1, (2, 2, 2, 2)), "x")
    with pytest.raises(UserError, match="holds no numbers"):
        encoder(Box(0, 1, (0,)), "x")
    assert num_actions(Discrete(4, start=2), "x") == (4, 2)
