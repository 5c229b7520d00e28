"""TensorBoard's event files, written at once and in this thread: a full disk is an error here, not in a thread."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from casa.run import durable

_numbers = itertools.count()


class EventFile:
    """A new event file in `folder`; TensorBoard drops the points of earlier files from step `purge` on."""

    def __init__(self, folder: Path, purge: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        durable.require_folder(folder)
        folder.mkdir(exist_ok=True)
        now, name = time.time(), socket.gethostname()
        path = folder / f"events.out.tfevents.{int(now):010d}.{name}.{os.getpid()}.{next(_numbers)}"
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (closed by `close`)
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if purge is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step=purge, session_log=start)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Add one point to each curve."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        self._add(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
