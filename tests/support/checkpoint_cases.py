"""A training state that follows from its step, to save, damage and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from casa.run.checkpoint import Checkpoint, save


def state_at(step: int) -> dict[str, Any]:
    """A state whose every number follows from the step, so that a mixture of two steps shows."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {"w": torch.randn(7, 5, generator=generator), "b": torch.full((3,), float(step))},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "m": torch.randn(35, generator=generator)}}},
        "replay": {"frames": torch.randint(0, 256, (40, 84), dtype=torch.uint8, generator=generator)},
    }


def assert_is(checkpoint: Checkpoint, step: int) -> None:
    expected = state_at(step)
    assert checkpoint.step == step
    assert checkpoint.meta == {"steps": step, "mean": 0.1 * step}
    assert torch.equal(checkpoint.state["model"]["w"], expected["model"]["w"])
    assert torch.equal(checkpoint.state["model"]["b"], expected["model"]["b"])
    if "optimizer" in checkpoint.state:
        assert torch.equal(
            checkpoint.state["optimizer"]["state"][0]["m"], expected["optimizer"]["state"][0]["m"]
        )
        assert torch.equal(checkpoint.state["replay"]["frames"], expected["replay"]["frames"])


def put(run: Path, step: int, **options: Any) -> Path:
    return save(run, step, state_at(step), {"steps": step, "mean": 0.1 * step}, **options)


def folders(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)
