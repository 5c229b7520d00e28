"""Messages on the console. Apart from the display, which needs torch: a command that only reads starts at once."""

from __future__ import annotations

from rich.console import Console

from casa.errors import printable


def say(console: Console, text: str) -> None:
    """Print a message as it stands: paths in it are no markup, and no control character reaches the screen."""
    console.print(printable(text), highlight=False, markup=False, emoji=False, soft_wrap=True)
