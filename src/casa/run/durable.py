"""Atomic file writes that survive a crash: write a temporary file, sync it, rename it, sync the folder."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Sync a directory, so that created, renamed and removed names survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until its content is on disk; its directory entry may not be yet."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically: it always holds either the old content or the new."""
    beside = path.with_name(f".tmp-{path.name}")
    beside.unlink(missing_ok=True)
    try:
        write_synced(beside, data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)
