"""Checkpoints: folders of safetensors and JSON files, created atomically and verified when read.

    RUN/checkpoints/step-000001000000/   model.safetensors, optimizer.safetensors, ...: one file per group
                                         meta.json      the metadata, and each tensor's position in its group
                                         manifest.json  step, serial number, size and SHA-256 of each file
    RUN/checkpoints/best.json            the folder name of the best checkpoint
    RUN/checkpoints/good.json            that of the newest one from which learning went on
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from casa.errors import UserError, nearest, unknown
from casa.run import durable
from casa.run.flatten import flatten, unflatten
from casa.run.manifest import (
    FOLDER,
    GROUP,
    LARGEST_META,
    DamagedError,
    Manifest,
    is_complete,
    read_manifest,
    read_small,
    scan,
    verify,
    write_manifest,
)
from casa.run.tensor_file import encoded_size, read_tensors, write_tensors

_TEMPORARY = ".tmp-"
POINTERS = ("best", "good")
"""Checkpoints that are kept beyond the newest ones; NAME.json names the folder."""


@dataclass(frozen=True)
class Checkpoint:
    """The state saved at `step`, by group, and `meta`; its folder; messages about damaged newer checkpoints."""

    step: int
    state: dict[str, Any]
    meta: dict[str, Any]
    path: Path
    damaged: list[str] = field(default_factory=list)


def save(
    run: Path,
    step: int,
    state: Mapping[str, Any],
    meta: Mapping[str, Any] | None = None,
    *,
    keep: int = 3,
    best: bool = False,
    good: str = "",
) -> Path:
    """Write RUN/checkpoints/step-STEP, mark it as the best if `best`, then remove all but the newest `keep`.

    `good` is the folder name of an earlier checkpoint that has proved to be good; "" keeps the one named before.

    `state` maps a group ("model", "optimizer", "replay", ...) to anything that `flatten` accepts. Each group has its
    own file, so that it can be read without the others. Neither the best nor the good one is removed. UserError if
    writing fails; earlier checkpoints are then unchanged.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"a checkpoint needs step >= 0 and keep >= 1, got {step} and {keep}")
    for group in state:
        if not GROUP.fullmatch(group):
            raise ValueError(f"checkpoint group {group!r} must be lower-case letters, digits and _")
    # Flatten first: a state that cannot be saved then leaves no files.
    flat = {group: flatten(value) for group, value in state.items()}
    stray, encoded_meta = flatten(dict(meta or {}))
    if stray:
        raise TypeError(f"checkpoint meta holds tensors ({', '.join(stray)}); put them into a group")
    encoded = {"meta": encoded_meta, "groups": {group: shape for group, (_, shape) in flat.items()}}
    text = json.dumps(encoded, allow_nan=False).encode()
    if len(text) > LARGEST_META:  # it could not be read again
        raise ValueError(f"checkpoint meta has {len(text):,} bytes, more than {LARGEST_META:,}")
    needed = len(text) + sum(encoded_size(tensors) for tensors, _ in flat.values())

    root = Path(run) / "checkpoints"
    temporary = root / f"{_TEMPORARY}{os.getpid()}-step-{step:012d}"
    try:
        durable.require_folder(root)
        root.mkdir(parents=True, exist_ok=True)
        durable.sync_directory(root.parent)
        for leftover in root.glob(f"{_TEMPORARY}*"):  # of a process that died while saving
            _remove(leftover)
        temporary.mkdir()
        files = {f"{group}.safetensors": tensors for group, (tensors, _) in flat.items()}
        listed = {name: write_tensors(temporary / name, tensors) for name, tensors in files.items()}
        durable.write_synced(temporary / "meta.json", text)
        listed["meta.json"] = len(text), hashlib.sha256(text).hexdigest()
        serial = 1 + max((manifest.serial for _, manifest in scan(root)[0]), default=0)
        write_manifest(temporary, Manifest(step, serial, listed))
        durable.sync_directory(temporary)
        folder = _free_name(root, step)
        os.rename(temporary, folder)
        durable.sync_directory(root)
        for pointer, name in (("best", folder.name if best else ""), ("good", good)):
            if name:
                durable.replace(root / f"{pointer}.json", json.dumps({"folder": name}).encode())
        _prune(root, keep)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk is full: a checkpoint in {root} needs {needed:,} bytes") from error
        raise UserError(f"cannot save a checkpoint in {root}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def load(
    source: Path,
    which: str | int = "latest",
    groups: Iterable[str] | None = None,
    on_damage: Callable[[str], None] | None = None,
) -> Checkpoint:
    """Load the checkpoint `which` (latest, best, good or a step) of a run directory, or the one in folder `source`.

    Only `groups` (None: all) are read and verified. "latest" is the newest undamaged checkpoint; damaged newer ones are
    reported through `on_damage` (None: `warnings.warn`) and in `Checkpoint.damaged`. Any other choice has no fallback:
    UserError if it is damaged or missing.
    """
    source, wanted = Path(source), None if groups is None else list(groups)
    if FOLDER.fullmatch(source.name) or (source / "manifest.json").exists():
        return _load_named(source, wanted)
    root = source / "checkpoints" if (source / "checkpoints").is_dir() else source
    readable, unreadable = scan(root)
    if which in POINTERS:
        return _load_named(_pointed(root, str(which)), wanted)
    if which != "latest":
        return _load_named(_at_step(source, readable, which), wanted)

    damaged: list[str] = []

    def passed_over(folder: Path, reason: str) -> None:
        damaged.append(f"checkpoint {folder} is damaged: {reason}")
        if on_damage:
            on_damage(damaged[-1])
        else:
            warnings.warn(damaged[-1], RuntimeWarning, stacklevel=3)

    for folder, reason in unreadable:
        passed_over(folder, reason)
    for folder, manifest in readable:
        try:
            state, meta = _read(folder, manifest, wanted)
            return Checkpoint(manifest.step, state, meta, folder, damaged)
        except DamagedError as error:
            if folder.exists():  # otherwise a concurrent training has just pruned it
                passed_over(folder, str(error))
    if damaged:
        raise UserError(f"no checkpoint in {root} is whole: {'; '.join(damaged)}")
    raise _nothing_at(source)


def _load_named(folder: Path, groups: list[str] | None) -> Checkpoint:
    if not folder.is_dir():
        raise _nothing_at(folder)
    try:
        manifest = read_manifest(folder)
        state, meta = _read(folder, manifest, groups)
    except DamagedError as error:
        raise UserError(f"checkpoint {folder} is damaged: {error}") from error
    return Checkpoint(manifest.step, state, meta, folder)


def _read(
    folder: Path, manifest: Manifest, groups: list[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state by group, meta), verified; other groups are not read."""
    names = manifest.groups if groups is None else groups
    for group in names:
        if group not in manifest.groups:
            there = ", ".join(manifest.groups) or "no tensors"
            raise UserError(f"checkpoint {folder} holds no {group!r}, it holds {there}")
    try:
        encoded = json.loads(verify(folder, "meta.json", manifest).read_bytes())
        state = {}
        for group in names:
            tensors = read_tensors(verify(folder, f"{group}.safetensors", manifest))
            state[group] = unflatten(tensors, encoded["groups"][group])
        return state, dict(unflatten({}, encoded["meta"]))
    except (ValueError, TypeError, KeyError, RecursionError, SafetensorError, OSError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _at_step(source: Path, found: list[tuple[Path, Manifest]], which: str | int) -> Path:
    if not str(which).isdecimal():
        raise unknown("checkpoint", str(which), ["latest", *POINTERS, "a step"])
    for folder, manifest in found:
        if manifest.step == int(which):
            return folder
    if not found:
        raise _nothing_at(source)
    near = min((manifest.step for _, manifest in found), key=lambda step: abs(step - int(which)))
    raise UserError(f"{source} has no checkpoint at step {which}; the nearest one is at {near}")


def _nothing_at(path: Path) -> UserError:
    if path.exists():
        return UserError(f"{path} holds no checkpoint; name a run directory or one of its checkpoints")
    beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside)
    return UserError(f"{path} does not exist" + (f"; did you mean {path.parent / near}?" if near else ""))


def _pointed(root: Path, which: str) -> Path:
    pointer = root / f"{which}.json"
    if not pointer.exists():
        raise UserError(f"{root} has no {which} checkpoint yet; use latest or a step")
    try:
        name = json.loads(read_small(pointer))["folder"]
        if FOLDER.fullmatch(name):
            return root / str(name)
    except (DamagedError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise UserError(f"{pointer} is damaged; use latest or a step")


def _prune(root: Path, keep: int) -> None:
    """Remove checkpoints older than the `keep` newest complete ones, and older saves of the same step."""
    try:
        named = {_pointed(root, which) for which in POINTERS if (root / f"{which}.json").exists()}
    except UserError:
        return  # the best one is unknown, so remove none
    readable, unreadable = scan(root)
    kept: set[int] = set()  # steps
    for folder, manifest in readable:
        if len(kept) < keep and manifest.step not in kept:
            # Damaged checkpoints of this age are kept for inspection, but do not count towards `keep`.
            if is_complete(folder, manifest):
                kept.add(manifest.step)
        elif folder not in named:
            _remove(folder)
    for folder, _ in unreadable:
        if len(kept) == keep and folder not in named:
            _remove(folder)


def _remove(path: Path) -> None:
    """Remove a folder or file; it is renamed first, so that a half-removed checkpoint is never found."""
    if not path.name.startswith(_TEMPORARY):
        path = path.rename(path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}"))
    if path.is_dir() and not path.is_symlink():
        # Files that cannot be removed now (open in a reader on a network disk) are removed at the next save.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


def _free_name(root: Path, step: int) -> Path:
    """step-STEP, or step-STEP-rN if that exists: a folder is never overwritten."""
    name = f"step-{step:012d}"
    path, revision = root / name, 1
    while path.exists():
        path, revision = root / f"{name}-r{revision}", revision + 1
    return path
