"""Atomic file writes that survive a crash: write a temporary file, sync it, rename it, sync the folder.

A run directory may come from somebody else. Files in it are opened without following links, and only plain files.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_plain(path: Path, flags: int, mode: int = 0o644) -> int:
    """`os.open` for a plain file; OSError for a link, a FIFO, a device or a folder, none of which is touched.

    If it is opened to be written, a second hard link is refused too: the other name would be changed as well.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for its other end. For plain files it has no effect.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    status = os.fstat(descriptor)
    reason = ""
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a plain file"
    elif status.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
        reason = "it is a hard link, which also changes the file's other name"
    if reason:
        os.close(descriptor)
        raise OSError(errno.EINVAL, reason, str(path))
    return descriptor


def read_plain(path: Path, limit: int) -> bytes:
    """The content of a plain file of at most `limit` bytes; OSError otherwise."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return data


def require_folder(path: Path) -> None:
    """OSError if `path` exists and is not a folder itself: a link to one would be written to and pruned elsewhere."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    if os.path.lexists(path) and not path.is_dir():
        raise OSError(errno.ENOTDIR, "it is not a folder", str(path))


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
