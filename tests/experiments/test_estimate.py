"""The speed of a probe."""

import pytest

from casa.experiments.estimate import _rate, checkpoint_bytes


def test_the_warm_up_is_not_part_of_the_speed():
    first = {"step": 640, "seconds": 9.0, "steps_per_second": 71.0}
    last = {"step": 4640, "seconds": 13.0, "steps_per_second": 990.0}
    assert _rate(first, last) == pytest.approx(1000.0)
    assert _rate(first, first) == 71.0


def test_the_largest_checkpoint_counts(tmp_path):
    assert checkpoint_bytes(tmp_path) == 0
    for name, size in (("step-000000000001", 10), ("step-000000000002", 30)):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(size))
    assert checkpoint_bytes(tmp_path) == 30
