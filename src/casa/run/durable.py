"""Files that are whole or absent after a crash: write beside, sync, rename, sync the folder."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory (files created, renamed, removed) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until its content is on the disk; its name may not be yet."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Give `path` the content `data`: at every moment it has the old content or the new one, whole."""
    beside = path.with_name(f".tmp-{path.name}")
    beside.unlink(missing_ok=True)
    try:
        write_synced(beside, data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)
