"""User errors: one clear sentence instead of a traceback."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path

LONGEST = 2000
"""Characters of a message."""


class UserError(Exception):
    """A mistake in the user's input; the message names the field, the value and the nearest valid one."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


def printable(text: str) -> str:
    """`text` on one line: control and invisible characters as escapes, at most LONGEST characters.

    Names in a file may come from a stranger, and a terminal obeys escape sequences.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text):,} characters)"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option most similar to `name`, ignoring case; None if none is close."""
    by_folded = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.5)
    return by_folded[found[0]] if found else None


def unknown(field: str, value: str, options: Iterable[str]) -> UserError:
    """The error for a value that is not in `options`; it suggests the nearest option or lists all."""
    known = sorted(options)
    near = nearest(value, known)
    several = f"choose one of: {', '.join(known)}" if len(known) <= 20 else "--help lists them all"
    hint = f"did you mean {near!r}?" if near else several
    return UserError(f"{field} {value!r} is unknown; {hint}")


def describe(error: BaseException) -> str:
    """`ValueError: bad state (my_env.py, line 12)`: type, message and innermost location of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"
