"""The first SIGINT or SIGTERM asks a run to save and leave; the second leaves at once.

Programs that pass signals on (`timeout`, a shell, a scheduler) send one to the process and one more to its group.
Those two are one wish: what comes within `TWICE` seconds of the first is the first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

TWICE = 0.3


class Interrupt:
    """While entered, `requested` tells whether the run should save and leave."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self._asked: float | None = None  # when
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._asked is not None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # signals belong to the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked is not None:
            if now - self._asked > TWICE:
                os._exit(128 + number)
            return
        self._asked = now
        # The signal may have come in the middle of a print, which cannot be entered twice.
        with contextlib.suppress(RuntimeError):
            self.note("stopping: saving first; once more to leave at once")
