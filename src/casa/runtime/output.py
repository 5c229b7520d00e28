"""A console that outlives its terminal, pipe or disk: a run must not end because nobody reads its progress."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


class Sturdy:
    """A text stream whose writes never fail: after the first error the output is dropped, with one note on stderr."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lost = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`, or drop it."""
        with self._checked():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written, or drop it."""
        with self._checked():
            self._stream.flush()

    @contextlib.contextmanager
    def _checked(self) -> Any:
        try:
            yield
        except (OSError, ValueError) as error:
            if self._lost:
                return
            self._lost = True
            send_to_null(self._stream)
            reason = getattr(error, "strerror", None) or error
            with contextlib.suppress(OSError, ValueError):
                print(f"casa: the output is lost ({reason}); the work goes on", file=sys.stderr, flush=True)


def send_to_null(stream: TextIO) -> None:
    """Send all further output of `stream`, and what is still in its buffer, to /dev/null."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def sturdy_console(quiet: bool = False) -> Console:
    """A console on standard output that never fails; markup is off, since names and paths may hold [brackets].

    A pipe has no width; 120 columns hold every table.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(file=cast(TextIO, Sturdy(sys.stdout)), width=width, quiet=quiet, markup=False, emoji=False)


def open_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed; otherwise the next file would get their number."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (stays open)
