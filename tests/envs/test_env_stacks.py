import numpy as np
import pytest

from casa.envs.stacks import push, rebuild


def test_rebuild_is_the_rule_written_out():
    frames = np.arange(1, 8, dtype=np.uint8)
    ages = np.array([0, 1, 2, 0, 1, 2, 3])
    np.testing.assert_array_equal(
        rebuild(frames, ages, 3),
        [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5], [4, 5, 6], [5, 6, 7]],
    )


def test_rebuild_needs_the_earlier_frames():
    with pytest.raises(ValueError, match="slot 0 has age 2, but no frame 1 slots before it"):
        rebuild(np.zeros(2), np.array([2, 3]), 3)


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_pushing_frame_by_frame_gives_what_rebuild_gives(stack):
    rng = np.random.default_rng(0)
    frames = rng.integers(1, 255, (50, 3, 2, 2)).astype(np.uint8)
    starts = rng.random((50, 3)) < 0.3
    starts[0] = True
    stacks = np.zeros((3, stack, 2, 2), np.uint8)
    pushed = np.stack([stacks := push(stacks, f, s) for f, s in zip(frames, starts, strict=True)])
    for env in range(3):
        slots = np.arange(50)
        ages = slots - np.maximum.accumulate(np.where(starts[:, env], slots, 0))
        np.testing.assert_array_equal(pushed[:, env], rebuild(frames[:, env], ages, stack))
