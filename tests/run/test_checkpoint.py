"""Checkpoints: exact to the bit, found by name, pruned, read in parts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support.checkpoint_cases import assert_is, flip, folders, put

import casa
from casa.errors import UserError
from casa.run import checkpoint, tensor_file
from casa.run.checkpoint import load, save
from casa.run.manifest import Manifest, verify


def odd_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    return {
        "bf16": torch.randn(5).bfloat16(),
        "half": torch.randn(3).half(),
        "double": torch.tensor([0.1, float("nan"), float("inf"), -0.0], dtype=torch.float64),
        "int64": torch.tensor([-(2**63), 2**63 - 1]),
        "int32": torch.tensor([-1], dtype=torch.int32),
        "bool": torch.tensor([[True, False, True]]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "uint32": torch.tensor([2**32 - 1], dtype=torch.uint32),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3.5),
        "transposed": base.t(),
        "strided": base[::2, 1::2],
        "expanded": torch.tensor([1.0]).expand(4),
        "whole": base,  # shares storage with the views above
        "a/../../b": torch.ones(1),
        "名前 \n\"'\\": torch.ones(2),
    }


def test_round_trip_to_the_bit(tmp_path: Path) -> None:
    tensors = odd_tensors()
    folder = save(tmp_path, 7, {"model": tensors, "nothing": {}}, {"nan": float("nan"), "t": (1, None), 5: "x"})
    assert folder.relative_to(tmp_path).as_posix() == "checkpoints/step-000000000007"
    loaded = load(tmp_path)
    assert (loaded.step, loaded.path, loaded.damaged) == (7, folder, [])
    assert loaded.state["nothing"] == {}
    assert loaded.meta.pop("nan") != 0
    assert loaded.meta == {"t": (1, None), 5: "x"}
    header = (folder / "model.safetensors").read_bytes()[:8]
    assert int.from_bytes(header, "little") % 8 == 0, "tensors begin aligned"
    library = load_file(folder / "model.safetensors")
    assert set(loaded.state["model"]) == set(tensors) == set(library)
    for name, tensor in tensors.items():
        for read in (loaded.state["model"][name], library[name]):
            assert read.dtype == tensor.dtype, name
            assert read.shape == tensor.shape, name
            bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (read, tensor)]
            assert torch.equal(*bits), name


def test_large_tensors_go_in_chunks_and_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK", 1000)
    monkeypatch.setattr(tensor_file, "MAPPED", 1000)
    frames = torch.randint(0, 256, (12345,), dtype=torch.uint8)
    folder = save(tmp_path, 1, {"replay": {"frames": frames}})
    before = (folder / "replay.safetensors").read_bytes()
    frames_read = load(tmp_path).state["replay"]["frames"]
    assert torch.equal(frames_read, frames)
    frames_read.zero_()  # the copy in memory, not the file
    assert (folder / "replay.safetensors").read_bytes() == before
    kept = load(tmp_path).state["replay"]["frames"]
    shutil.rmtree(folder)
    assert torch.equal(kept, frames), "a checkpoint that is pruned while it is in use stays readable"


def test_unsupported_state_leaves_no_trace(tmp_path: Path) -> None:
    for state, meta in [
        ({"model": {"w": torch.zeros(1, dtype=torch.complex64)}}, {}),
        ({"model": {"w": torch.eye(2).to_sparse()}}, {}),
        ({"model": {"w": object()}}, {}),
        ({"model": {}}, {"w": torch.ones(1)}),
        ({"model": {}}, {"w": {1, 2}}),
    ]:
        with pytest.raises(TypeError):
            save(tmp_path, 1, state, meta)
    for state in ({"../model": {}}, {"Model": {}}, {"": {}}, {"a/b": {}}):
        with pytest.raises(ValueError, match="group"):
            save(tmp_path, 1, state)
    with pytest.raises(ValueError, match="step >= 0"):
        save(tmp_path, -1, {})
    assert list(tmp_path.iterdir()) == []


def test_latest_best_step_and_path(tmp_path: Path) -> None:
    put(tmp_path, 100)
    with pytest.raises(UserError, match="no best checkpoint yet; use latest"):
        load(tmp_path, "best")
    put(tmp_path, 200, best=True)
    path = put(tmp_path, 300)
    assert_is(load(tmp_path), 300)
    assert_is(load(tmp_path, "best"), 200)
    assert_is(load(tmp_path, 100), 100)
    assert_is(load(tmp_path, "100"), 100)
    assert_is(load(path), 300)
    assert_is(load(tmp_path / "checkpoints"), 300)
    moved = shutil.copytree(path, tmp_path / "elsewhere")
    assert_is(load(moved), 300)
    with pytest.raises(UserError, match="no checkpoint at step 160; the nearest one is at 200"):
        load(tmp_path, 160)
    with pytest.raises(UserError, match="did you mean 'latest'"):
        load(tmp_path, "lates")


def test_nothing_to_load(tmp_path: Path) -> None:
    (tmp_path / "breakout-1").mkdir()
    for which in ("latest", 5):
        with pytest.raises(UserError, match="holds no checkpoint"):
            load(tmp_path / "breakout-1", which)
    with pytest.raises(UserError, match=r"does not exist; did you mean .*breakout-1"):
        load(tmp_path / "breakuot-1")
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "breakout-1" / "checkpoints" / "step-000000000005")


def test_old_ones_go_and_the_best_stays(tmp_path: Path) -> None:
    for step in range(1, 8):
        put(tmp_path, step, keep=2, best=step in (1, 3))
    assert folders(tmp_path) == ["step-000000000003", "step-000000000006", "step-000000000007"]
    assert_is(load(tmp_path, "best"), 3)


def test_damaged_ones_do_not_count(tmp_path: Path) -> None:
    put(tmp_path, 1)
    (put(tmp_path, 2) / "replay.safetensors").unlink()
    put(tmp_path, 3, keep=2)
    assert folders(tmp_path) == [f"step-{s:012d}" for s in (1, 2, 3)], "1 is the one before the newest that is whole"
    put(tmp_path, 4, keep=2)
    assert folders(tmp_path) == [f"step-{s:012d}" for s in (3, 4)]


def test_removed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation beside a running training: what was pruned under its eyes is gone, not damaged."""
    put(tmp_path, 1)
    newest = put(tmp_path, 2)

    def verify_late(folder: Path, name: str, manifest: Manifest) -> Path:
        if newest.exists():
            shutil.rmtree(newest)
        return verify(folder, name, manifest)

    monkeypatch.setattr(checkpoint, "verify", verify_late)
    loaded = load(tmp_path)
    assert_is(loaded, 1)
    assert loaded.damaged == []


def test_same_step_again_replaces_without_a_gap(tmp_path: Path) -> None:
    put(tmp_path, 5)
    save(tmp_path, 5, {"model": {"new": torch.ones(1)}})
    assert folders(tmp_path) == ["step-000000000005-r1"]
    assert list(load(tmp_path).state["model"]) == ["new"]
    assert list(load(tmp_path, 5).state["model"]) == ["new"]
    put(tmp_path, 5)
    assert folders(tmp_path) == ["step-000000000005"]
    assert_is(load(tmp_path), 5)


def test_latest_is_the_last_written_not_the_largest_step(tmp_path: Path) -> None:
    """A run that went back to step 100 goes on from there, whatever an abandoned future left behind."""
    for step in (100, 200, 300):
        put(tmp_path, step, best=step == 300)
    put(tmp_path, 150)
    assert_is(load(tmp_path), 150)
    put(tmp_path, 180)
    put(tmp_path, 190)
    assert folders(tmp_path) == [f"step-{s:012d}" for s in (150, 180, 190, 300)]
    assert_is(load(tmp_path, "best"), 300)


def test_unreadable_best_pointer_stops_the_pruning(tmp_path: Path) -> None:
    put(tmp_path, 1, best=True)
    for text in ("{", '{"folder": "../../x"}', '{"folder": 3}', "[]", "\0" * 10, '{"folder": "' + "x" * 2**21):
        (tmp_path / "checkpoints/best.json").write_text(text)
        with pytest.raises(UserError, match=r"best\.json is damaged; use latest"):
            load(tmp_path, "best")
    for step in range(2, 6):
        put(tmp_path, step, keep=1)
    assert len(folders(tmp_path)) == 5
    put(tmp_path, 6, keep=1, best=True)
    assert folders(tmp_path) == ["step-000000000006"]


def test_groups_are_read_alone(tmp_path: Path) -> None:
    folder = put(tmp_path, 1)
    (folder / "replay.safetensors").unlink()
    flip(folder / "optimizer.safetensors", 800)
    loaded = load(tmp_path, groups=("model",))
    assert list(loaded.state) == ["model"]
    assert_is(loaded, 1)
    assert loaded.damaged == []
    with pytest.raises(UserError, match=r"no checkpoint in .* is whole"):
        load(tmp_path, on_damage=lambda text: None)
    with pytest.raises(UserError, match="holds no 'modle', it holds model, optimizer, replay"):
        load(tmp_path, groups=["modle"])


def test_no_unpickling_anywhere() -> None:
    sources = list(Path(casa.__path__[0]).rglob("*.py"))
    assert len(sources) > 5
    for path in sources:
        found = re.search(r"\b(import c?pickle|torch\.(load|save)\(|np\.load\(|joblib|dill)", path.read_text())
        assert not found, f"{path}: {found}"


def test_sum_of_parts_is_what_the_disk_holds(tmp_path: Path) -> None:
    """The bytes that a full disk is blamed for are those that a save writes."""
    tensors = {"a": torch.zeros(100), "b": torch.from_numpy(np.zeros(3))}
    path = tmp_path / "x.safetensors"
    assert tensor_file.write_tensors(path, tensors)[0] == path.stat().st_size == tensor_file.encoded_size(tensors)
