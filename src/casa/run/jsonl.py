"""Logs in JSON Lines format: append-only, repaired after a crash, rewound when a run resumes from a checkpoint."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO

from casa.errors import UserError
from casa.run import durable

_BLOCK = 2**16
LONGEST = 2**24
"""Bytes of a line; a record has about 1,000."""
TAIL = 2**16
"""Bytes at the end of a log in which `last_record` looks."""


class JsonlWriter:
    """Appends records to a file; each is one line, written immediately by a single system call.

    Opening repairs a file whose last line is incomplete after a crash: that line is removed, and `repaired` is its size
    in bytes. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self.repaired = self._open()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record, which needs an integer "step"; NaN and infinity become null, to stay valid JSON."""
        if not isinstance(record.get("step"), Integral):
            raise ValueError(f"a record of {self.path.name} needs an integer step, got {record.get('step')!r}")
        line = json.dumps(_plain(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._descriptor is None:
                raise ValueError(f"{self.path} is closed")
            try:
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._size += len(line)
            except OSError as error:
                os.ftruncate(self._descriptor, self._size)  # remove the partial line before the next record
                raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error

    def rewind(self, step: int) -> int:
        """Drop the records of steps > `step`, and damaged lines; returns the number of lines dropped.

        A run that resumes from a checkpoint at `step` writes those records again. The file is replaced atomically.
        """
        with self._lock:
            with open(durable.open_plain(self.path, os.O_RDONLY), "rb") as file:
                marked = [(line if _is_kept(_parse(line), step) else None) for line in _lines(file)]
            kept = [line for line in marked if line is not None]
            if len(kept) < len(marked):
                self._close()
                try:
                    durable.replace(self.path, b"".join(kept))
                except OSError as error:
                    raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error
                finally:
                    self._open()
            return len(marked) - len(kept)

    def sync(self) -> None:
        """Wait until all records are on disk; called before a checkpoint."""
        with self._lock:
            if self._descriptor is not None:
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the log; it may be closed twice."""
        with self._lock:
            self._close()

    def _open(self) -> int:
        try:
            self._descriptor = durable.open_plain(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise UserError(f"cannot open {self.path}: {error.strerror or error}") from error
        size = os.fstat(self._descriptor).st_size
        self._size = _end_of_last_line(self._descriptor, size)
        if self._size < size:
            os.ftruncate(self._descriptor, self._size)
        return size - self._size

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log, in order, also while a run is still writing it.

    An incomplete last line is skipped silently, because the writer will complete or repair it; any other damaged line
    is skipped with a warning that names it. UserError if the file cannot be read.
    """
    try:
        file = open(durable.open_plain(path, os.O_RDONLY), "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; is {path.parent} a run directory?") from error
    with file:
        for number, line in enumerate(_lines(file), 1):
            record = _parse(line)
            if record is not None:
                yield record
            elif line.endswith(b"\n"):
                warnings.warn(f"{path}, line {number}, is damaged and skipped", RuntimeWarning, stacklevel=2)


def last_record(path: Path) -> dict[str, Any]:
    """The last complete record of a log; empty if there is none. Reads the last TAIL bytes only."""
    try:
        with open(durable.open_plain(path, os.O_RDONLY), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return {}
    return next((record for line in reversed(lines) if (record := _parse(line)) is not None), {})


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; one of more than LONGEST bytes comes in pieces, which are no records."""
    return iter(lambda: file.readline(LONGEST), b"")


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record on a line, or None if the line is incomplete or not a JSON object."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_kept(record: dict[str, Any] | None, step: int) -> bool:
    return record is not None and type(record.get("step")) is int and record["step"] <= step


def _plain(value: Any) -> Any:
    """The value in JSON types: non-finite floats become null, arrays and tensors become lists or numbers."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"a log cannot hold {type(value).__name__}")


def _end_of_last_line(descriptor: int, size: int) -> int:
    """The position after the last newline, searched from the end; 0 if there is none."""
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
