"""Environments that do not answer: say which, and free a run that was told to stop from waiting for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from casa.engines.system import System
from casa.run.interrupt import Interrupt

PATIENCE = 30.0
"""Seconds of silence after which the environment is named; again after twice as long, and so on."""
GRACE = 5.0
"""Seconds of silence after which a run that was told to stop no longer waits."""


class Watchdog:
    """A thread that looks at the environments twice a second while entered."""

    def __init__(self, system: System, interrupt: Interrupt, note: Callable[[str], None]) -> None:
        self.system, self.interrupt, self.note = system, interrupt, note
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="casa-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        due = PATIENCE
        while not self._over.wait(0.5):
            seconds, silent = self.system.silent()
            if seconds < PATIENCE:
                due = PATIENCE
            elif seconds >= due:
                self.note(described(silent, seconds))
                due *= 2
            if not self.system.abandoned and min(seconds, self.interrupt.waited) > GRACE:
                self.note(f"{described(silent, seconds)}: saving without waiting any longer")
                self.system.abandon()
                self.interrupt.leave_environment()


def described(silent: Sequence[int], seconds: float) -> str:
    """`environment 3 has not answered for 30 s`; at most four are named."""
    if len(silent) == 1:
        return f"environment {silent[0]} has not answered for {seconds:.0f} s"
    more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
    named = f" {', '.join(map(str, silent[:4]))}{more}" if silent else ""
    return f"the environments{named} have not answered for {seconds:.0f} s"
