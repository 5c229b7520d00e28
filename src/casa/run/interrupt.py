"""The first SIGINT or SIGTERM makes a run save and exit; the second exits immediately.

Programs that forward signals (`timeout`, a shell, a scheduler) signal both the process and its group, so that the
signal arrives twice. Therefore a second signal within `TWICE` seconds of the first is ignored.
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
    """Handles both signals while entered; `requested` tells whether the run should save and exit."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self._asked: float | None = None  # time of the first signal
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has been received."""
        return self._asked is not None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set signal handlers
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
        # The signal may have interrupted a print, which is not reentrant.
        with contextlib.suppress(RuntimeError):
            self.note("stopping: saving first; once more to leave at once")
