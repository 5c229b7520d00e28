"""The directory of a run: its configuration and logs, locked by one process at a time.

    RUN/config.yaml      the complete configuration
    RUN/metrics.jsonl    one record per report; the authoritative metrics
    RUN/episodes.jsonl   one record per episode
    RUN/checkpoints/     see `casa.run.checkpoint`
    RUN/report.html      curves and configuration to look at; see `casa.run.digest`
    RUN/.lock            held by the training process; its pid, host and start time, as JSON
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import weakref
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from casa.errors import UserError, nearest
from casa.run import durable
from casa.run.jsonl import JsonlWriter

LARGEST_CONFIG = 2**18
"""Bytes; a config.yaml has about 4,000."""


class RunDir:
    """`with RunDir.create(path) as run:` for a new run, `with RunDir.open(path) as run:` to resume one.

    UserError if another process has locked the directory, if a new run would mix with an old one, or if there is
    nothing to resume. The kernel releases the lock when its owner dies, even by `kill -9`. `notes` lists what was
    repaired.
    """

    metrics: JsonlWriter
    episodes: JsonlWriter

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.notes: list[str] = []
        self._resume = resume
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """A directory for a new run; it may exist, but must not hold a run."""
        return cls(path, resume=False)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """The directory of a run to resume."""
        return cls(path, resume=True)

    def __enter__(self) -> RunDir:
        if self._resume and not self.path.is_dir():
            raise UserError(f"{self.path} does not exist{_did_you_mean(self.path)}")
        try:
            self._check_resumable()  # first: a directory without a run gets no lock file
            self.path.mkdir(parents=True, exist_ok=True)
            durable.require_folder(self.path / "checkpoints")
            self._acquire()
        except OSError as error:
            which = "" if error.filename in (None, str(self.path)) else f"{error.filename}: "
            raise UserError(f"cannot use {self.path} as run directory: {which}{error.strerror or error}") from error
        try:
            self._check_content()
            self.metrics = self._log("metrics.jsonl")
            self.episodes = self._log("episodes.jsonl")
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.metrics.close()
        self.episodes.close()
        self._release()

    def write_config(self, text: str) -> None:
        """Replace config.yaml atomically."""
        try:
            durable.replace(self.config, text.encode())
        except OSError as error:
            raise UserError(f"cannot write {self.config}: {error.strerror or error}") from error

    def read_config(self) -> str:
        """The text of config.yaml."""
        return read_config(self.config)

    def written(self) -> list[str]:
        """The paths of the files and folders that the run has written."""
        return sorted(str(path) for path in self.path.iterdir() if not path.name.startswith("."))

    def drop_after(self, step: int) -> int:
        """Drop the log records of steps > `step`; returns the number of lines dropped.

        A run resumed at `step` writes those records again. Each log is replaced atomically.
        """
        return self.metrics.rewind(step) + self.episodes.rewind(step)

    def sync(self) -> None:
        """Wait until the logs are on disk; called before a checkpoint, so that the logs are never older than it."""
        self.metrics.sync()
        self.episodes.sync()

    def _log(self, name: str) -> JsonlWriter:
        log = JsonlWriter(self.path / name)
        if log.repaired:
            self.notes.append(f"{log.path}: the last line was torn by a crash, its {log.repaired} bytes are removed")
        return log

    def _check_resumable(self) -> None:
        saved = (self.path / "checkpoints").is_dir() and any((self.path / "checkpoints").glob("step-*"))
        if self._resume and not saved and not os.path.lexists(self.config):
            raise UserError(f"{self.path} holds no run to resume: it has no config.yaml{_did_you_mean(self.path)}")

    def _check_content(self) -> None:
        checkpoints = self.path / "checkpoints"
        saved = checkpoints.is_dir() and any(checkpoints.glob("step-*"))
        logged = [p for p in (self.path / "metrics.jsonl", self.path / "episodes.jsonl") if p.exists()]
        holds_run = os.path.lexists(self.config) or saved or any(log.stat().st_size for log in logged)
        if not self._resume and saved:
            raise UserError(
                f"{self.path} already holds a run; continue it with `casa resume {shlex.quote(str(self.path))}` "
                "or choose another --run-dir"
            )
        if not self._resume and holds_run:
            raise UserError(
                f"{self.path} already holds a run, which stopped before its first checkpoint; "
                "delete the directory or choose another --run-dir"
            )

    def _acquire(self) -> None:
        descriptor = durable.open_plain(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(descriptor) or {}
            os.close(descriptor)
            raise UserError(
                f"{self.path} is in use by process {holder.get('pid', 'unknown')} "
                f"on {holder.get('host', 'this machine')} since {holder.get('started', 'just now')}; "
                "stop it or choose another --run-dir"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        # A process that exits normally empties the file; a process still named in it was killed.
        here = socket.gethostname()
        if left := _read_holder(descriptor):
            self.notes.append(self._left_by(left, here))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": here, "started": started}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        self._lock = descriptor
        _held.add(self)

    def _left_by(self, holder: dict[str, Any], here: str) -> str:
        pid, host = holder.get("pid"), holder.get("host")
        if host in (None, here):
            return f"{self.path} was left by process {pid}, which was killed; it is free now"
        return (
            f"{self.path} was left by process {pid} on {host}, which did not end normally; if it still runs there "
            "(not every network disk shares locks), stop one of the two"
        )

    def _release(self) -> None:
        # Keep the file: if it were removed, two processes could lock two different files of this name.
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None
        _held.discard(self)


def read_config(path: Path) -> str:
    """The text of a run's config.yaml; UserError if it is not a readable plain file of ordinary size."""
    try:
        return durable.read_plain(path, LARGEST_CONFIG).decode()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"cannot read {path}: it is not UTF-8") from None


def _read_holder(descriptor: int) -> dict[str, Any] | None:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return None
    return holder if isinstance(holder, dict) else None


def _did_you_mean(path: Path) -> str:
    beside = [p.name for p in path.parent.iterdir() if p != path] if path.parent.is_dir() else []
    near = nearest(path.name, beside)
    return f"; did you mean {path.parent / near}?" if near else ""


# A forked child (an environment worker) inherits its parent's lock. It closes its copy at once; otherwise a worker that
# outlives a killed training would keep the directory locked.
_held: weakref.WeakSet[RunDir] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for run in list(_held):
        if run._lock is not None:
            os.close(run._lock)
            run._lock = None
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
