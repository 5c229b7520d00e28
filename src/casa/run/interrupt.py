"""The first SIGINT, SIGTERM or SIGHUP makes a run save and exit; a second SIGINT or SIGTERM exits immediately.

Programs that forward signals (`timeout`, a shell, a scheduler) signal both the process and its group, so that the
signal arrives twice. Therefore a second signal within `TWICE` seconds of the first is ignored. A terminal that is
closed may send any number of SIGHUP.
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

from casa.envs.types import Abandoned

TWICE = 0.3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal stopped the run before its last step; everything is saved. `status` is the exit status, 128 + signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interrupt:
    """Handles the signals while entered; `requested` tells whether the run should save and exit.

    `blocked` tells whether the main thread is inside an environment, so that it may be thrown out of it.
    """

    def __init__(self, note: Callable[[str], None], blocked: Callable[[], bool] = lambda: False) -> None:
        self.note, self.blocked = note, blocked
        self.number = 0
        self._asked: float | None = None  # time of the first signal
        self._leave_environment = False
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has been received."""
        return self._asked is not None

    @property
    def waited(self) -> float:
        """Seconds since the first signal; 0 before it."""
        return 0.0 if self._asked is None else time.monotonic() - self._asked

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set signal handlers
            for number in SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave_environment(self) -> None:
        """Called by another thread: raise `Abandoned` in the main thread if that is inside an environment."""
        if self._before:
            self._leave_environment = True
            signal.pthread_kill(threading.main_thread().ident or 0, self.number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._leave_environment:
            self._leave_environment = False
            if self.blocked():
                raise Abandoned
            return
        if self._asked is not None:
            if now - self._asked > TWICE and number != signal.SIGHUP:
                os._exit(128 + number)
            return
        self._asked, self.number = now, number
        # The signal may have interrupted a print, which is not reentrant.
        with contextlib.suppress(RuntimeError):
            self.note("stopping: saving first; once more to leave at once")
