"""Checkpoints that rotted, and checkpoints from strangers: found out, never obeyed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoint_cases import assert_is, flip, folders, put

from casa.errors import UserError
from casa.run.checkpoint import load

FILES = ["model.safetensors", "optimizer.safetensors", "replay.safetensors", "meta.json", "manifest.json"]
DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
    "zeroed": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "flipped": lambda path: flip(path, path.stat().st_size * 4),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_is_passed_over_loudly(tmp_path: Path, name: str, damage: str) -> None:
    put(tmp_path, 1)
    folder = put(tmp_path, 2)
    DAMAGES[damage](folder / name)
    with pytest.warns(RuntimeWarning, match=re.escape(f"checkpoint {folder} is damaged: ")):
        checkpoint = load(tmp_path)
    assert_is(checkpoint, 1)
    assert len(checkpoint.damaged) == 1
    heard: list[str] = []
    assert load(tmp_path, on_damage=heard.append).damaged == heard == checkpoint.damaged
    for source, which in [(folder, "latest"), (tmp_path, 2)]:
        with pytest.raises(UserError, match=r"damaged|no checkpoint at step 2"):
            load(source, which)
    # The run goes on, and the damaged one disappears when the others are complete again.
    for step in (3, 4, 5):
        put(tmp_path, step)
    assert folders(tmp_path) == [f"step-{s:012d}" for s in (3, 4, 5)]


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    folder = put(tmp_path, 2)
    sample = random.Random(0)
    caught = 0
    for name in FILES:
        original = (folder / name).read_bytes()
        for bit in sample.sample(range(8 * len(original)), 60):
            flip(folder / name, bit)
            try:
                assert_is(load(folder), 2)
                assert name == "manifest.json", "only white space of the manifest may change unnoticed"
            except UserError:
                caught += 1
            (folder / name).write_bytes(original)
    assert caught > 270
    assert_is(load(folder), 2)


@pytest.mark.parametrize("field", ["step", "serial", "bytes"])
def test_manifest_is_protected_by_its_own_checksum(tmp_path: Path, field: str) -> None:
    folder = put(tmp_path, 5)
    path = folder / "manifest.json"
    text = path.read_text()
    changed = re.sub(rf'("{field}": \d*)(\d)', lambda m: m[1] + str((int(m[2]) + 1) % 10), text, count=1)
    assert changed != text
    path.write_text(changed)
    with pytest.raises(UserError, match=r"manifest\.json does not match its checksum"):
        load(folder)


def test_all_damaged(tmp_path: Path) -> None:
    for step in (1, 2):
        (put(tmp_path, step) / "meta.json").unlink()
    with pytest.warns(RuntimeWarning), pytest.raises(UserError, match=r"is whole: .*02 is dam.*01 is dam"):
        load(tmp_path)


def test_damaged_best_is_an_error_of_its_own(tmp_path: Path) -> None:
    folder = put(tmp_path, 1, best=True)
    put(tmp_path, 2)
    flip(folder / "model.safetensors", 999)
    with pytest.raises(UserError, match=r"step-000000000001 is damaged: model\.safetensors does not match"):
        load(tmp_path, "best")


def forge(folder: Path, change: Any) -> None:
    """Rewrite a manifest with a right checksum of its own: what someone who means harm would send."""
    body = json.loads((folder / "manifest.json").read_text())["manifest"]
    change(body)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    text = json.dumps({"manifest": body, "sha256": hashlib.sha256(canonical).hexdigest()})
    (folder / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "model", "model.SAFETENSORS", "x\0.safetensors"],
)
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    folder = put(tmp_path, 1)
    shutil.copy(folder / "model.safetensors", folder.parent / "secret.safetensors")
    forge(folder, lambda body: body["files"].update({name: body["files"]["model.safetensors"]}))
    with pytest.raises(UserError, match="names the file"):
        load(folder)


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = put(tmp_path, 1)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(UserError, match="not a plain file"):
        load(folder)
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    (other / "checkpoints" / "step-000000000001").symlink_to(put(tmp_path, 2).parent)
    with pytest.raises(UserError, match="holds no checkpoint"):
        load(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(format=2),
        lambda body: body.update(step="1"),
        lambda body: body.update(step=2),
        lambda body: body.update(serial=-1),
        lambda body: body.update(serial=None),
        lambda body: body["files"].pop("meta.json"),
        lambda body: body["files"]["meta.json"].update(bytes=True),
        lambda body: body["files"]["meta.json"].update(sha256="0"),
        lambda body: body.update(files=[]),
        lambda body: body.pop("files"),
    ],
)
def test_forged_manifests_are_damage(tmp_path: Path, change: Any) -> None:
    forge(put(tmp_path, 1), change)
    with pytest.warns(RuntimeWarning, match="manifest"), pytest.raises(UserError, match="is whole"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '{"manifest": 1, "sha256": 1}', "[]", "\xff" * 2**21])
def test_hostile_json_is_damage(tmp_path: Path, text: str) -> None:
    (put(tmp_path, 1) / "manifest.json").write_text(text)
    with pytest.warns(RuntimeWarning, match="manifest"), pytest.raises(UserError, match="is whole"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{}", b"[]", b'{"meta": {"$x": 1}, "groups": {}}', b"\xff"])
def test_hostile_meta_with_right_checksum_is_damage(tmp_path: Path, content: bytes) -> None:
    folder = put(tmp_path, 1)
    (folder / "meta.json").write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(folder, lambda body: body["files"].update({"meta.json": entry}))
    with pytest.raises(UserError, match="is damaged"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, (2**40).to_bytes(8, "little"), b"\2" + b"\0" * 7 + b"{]", b"PK"])
def test_hostile_tensors_with_right_checksum_are_damage(tmp_path: Path, content: bytes) -> None:
    folder = put(tmp_path, 1)
    (folder / "model.safetensors").write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(folder, lambda body: body["files"].update({"model.safetensors": entry}))
    with pytest.raises(UserError, match="is damaged"):
        load(folder)
