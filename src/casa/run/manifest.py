"""The manifest of a checkpoint folder, and the checks of its files against it.

A checkpoint is untrusted data: names in it are matched against patterns before they become paths, symlinks are not
followed, sizes are bounded, and nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casa.run import durable

FORMAT = 1
FOLDER = re.compile(r"step-([0-9]{12,18})(-r[0-9]{1,6})?")
GROUP = re.compile(r"[a-z][a-z0-9_]{0,40}")
_NAME = "manifest.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SMALL = 2**20  # bytes; a manifest or a pointer is far smaller
LARGEST_META = 2**24
"""Bytes; the metadata of a large network with its optimizer has about 100,000."""


class DamagedError(Exception):
    """A checkpoint cannot be used; the message says why."""


@dataclass(frozen=True)
class Manifest:
    """The step, the serial number, and name -> (bytes, SHA-256) of each file of a checkpoint.

    `serial` increases with every save of a run. The step may not: a run resumed from an earlier checkpoint saves
    smaller steps again.
    """

    step: int
    serial: int
    files: dict[str, tuple[int, str]]

    @property
    def groups(self) -> list[str]:
        """The names of the checkpoint's tensor groups."""
        return [name.removesuffix(".safetensors") for name in self.files if name != "meta.json"]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, with a checksum of itself."""
    body = {
        "format": FORMAT,
        "step": manifest.step,
        "serial": manifest.serial,
        "files": {name: {"bytes": size, "sha256": sha} for name, (size, sha) in manifest.files.items()},
    }
    text = json.dumps({"manifest": body, "sha256": _digest(body)}, indent=1)
    durable.write_synced(folder / _NAME, text.encode())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint; DamagedError if it is damaged or malformed."""
    try:
        outer = json.loads(read_small(folder / _NAME))
        body = outer["manifest"]
        if outer["sha256"] != _digest(body):
            raise DamagedError(f"{_NAME} does not match its checksum")
        if body["format"] != FORMAT:
            raise DamagedError(f"{_NAME} has format {body['format']!r}, this version reads {FORMAT}")
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in body["files"].items()}
        step, serial = body["step"], body["serial"]
        counts = [step, serial, *(size for size, _ in files.values())]
        if any(type(n) is not int or n < 0 for n in counts) or "meta.json" not in files:
            raise DamagedError(f"{_NAME} lacks a count or meta.json")
        if files["meta.json"][0] > LARGEST_META:
            raise DamagedError(f"meta.json has {files['meta.json'][0]:,} bytes, more than {LARGEST_META:,}")
        for name, (_, sha) in files.items():
            group = name.removesuffix(".safetensors")
            if name != "meta.json" and (group == name or not GROUP.fullmatch(group)):
                raise DamagedError(f"{_NAME} names the file {name[:80]!r}")
            if not _SHA256.fullmatch(sha):
                raise DamagedError(f"{_NAME} has no checksum for {name}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{_NAME} is not readable") from error
    return Manifest(step, serial, files)


def read_small(path: Path) -> bytes:
    """The content of a small regular file; DamagedError otherwise."""
    if _plain_size(path) > _SMALL:
        raise DamagedError(f"{path.name} is too large")
    return path.read_bytes()


def verify(folder: Path, name: str, manifest: Manifest) -> Path:
    """The path of a file, if its size and SHA-256 match the manifest; DamagedError otherwise."""
    _check_size(folder, name, manifest)
    with open(folder / name, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.files[name][1]:
            raise DamagedError(f"{name} does not match its checksum")
    return folder / name


def scan(root: Path) -> tuple[list[tuple[Path, Manifest]], list[tuple[Path, str]]]:
    """The checkpoint folders in `root`: readable ones as (folder, manifest), newest first; others as (folder, reason).

    Reads only the manifests; `verify` and `is_complete` check the other files.
    """
    readable: list[tuple[Path, Manifest]] = []
    unreadable: list[tuple[Path, str]] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        match = FOLDER.fullmatch(folder.name)
        if not match or folder.is_symlink() or not folder.is_dir():
            continue
        try:
            manifest = read_manifest(folder)
            if manifest.step != int(match[1]):
                raise DamagedError(f"{_NAME} is that of step {manifest.step}")
            readable.append((folder, manifest))
        except (DamagedError, OSError) as error:
            if folder.exists():  # otherwise a concurrent training has just pruned it
                unreadable.append((folder, str(error)))
    readable.sort(key=lambda item: item[1].serial, reverse=True)
    return readable, unreadable


def is_complete(folder: Path, manifest: Manifest) -> bool:
    """Whether every file exists with the right size; cheaper than `verify`, which reads all bytes."""
    try:
        for name in manifest.files:
            _check_size(folder, name, manifest)
    except DamagedError:
        return False
    return True


def _check_size(folder: Path, name: str, manifest: Manifest) -> None:
    size, expected = _plain_size(folder / name), manifest.files[name][0]
    if size != expected:
        raise DamagedError(f"{name} has {size:,} bytes instead of {expected:,}")


def _plain_size(path: Path) -> int:
    try:
        status = os.lstat(path)
    except OSError as error:
        raise DamagedError(f"{path.name} is missing") from error
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path.name} is not a plain file")
    return status.st_size


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
