"""One display over all runs: a live table in a terminal, plain lines when piped."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from casa.experiments.scheduler import Progress, Scheduler, share
from casa.experiments.state import last_row
from casa.run.display import duration, number

LINE_EVERY = 10.0
SHOWN = 20
"""Running jobs to show, at most."""


class Display:
    """`show(progress)` after every look at the jobs; it redraws once a second, or prints a line every ten."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        self._shown = 0.0
        self._at_start: float | None = None
        self._failures = 0
        self._last = ""

    def __enter__(self) -> Display:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, progress: Progress) -> None:
        """Show the progress, if it is time to."""
        for name, why in list(progress.failed.items())[self._failures :]:
            self.console.print(f"failed: {name}: {why}", highlight=False, markup=False, soft_wrap=True)
        self._failures = len(progress.failed)
        now = time.monotonic()
        if now - self._shown < (1.0 if self.live is not None else LINE_EVERY) and progress.running:
            return
        if (line := self._line(progress)) == self._last:
            return
        self._last = line
        self._shown = now
        if self.live is not None:
            self.live.update(self._table(progress))
        else:
            self.console.print(line, highlight=False, soft_wrap=True)

    def _done(self, progress: Progress) -> float:
        """The share of all runs that is done."""
        ended = len(progress.finished) + len(progress.failed)
        return (ended + sum(share(run) for run in progress.running.values())) / max(progress.total, 1)

    def _line(self, progress: Progress) -> str:
        done = self._done(progress)
        if self._at_start is None:
            self._at_start = done
        elapsed = time.monotonic() - progress.began
        gained = done - self._at_start
        left = duration(elapsed * (1 - done) / gained) if gained > 0.005 else "unknown"
        return (
            f"{100 * done:3.0f}%  {len(progress.finished)} of {progress.total} runs finished, "
            f"{len(progress.running)} running, {len(progress.waiting)} waiting, {len(progress.failed)} failed, "
            f"{duration(elapsed)} so far, {left} left"
        )

    def _table(self, progress: Progress) -> Table:
        table = Table.grid(padding=(0, 2))
        table.title, table.title_justify = self._line(progress), "left"
        for run in list(progress.running.values())[:SHOWN]:
            row = last_row(run.path)
            table.add_row(
                run.name,
                ProgressBar(total=1.0, completed=share(run), width=24),
                f"return {number(row.get('return'))}",
                f"{number(row.get('steps_per_second'))} steps/s",
            )
        if len(progress.running) > SHOWN:
            table.add_row(f"and {len(progress.running) - SHOWN} more")
        return table


def follow(scheduler: Scheduler, console: Console) -> Progress:
    """Run a scheduler's runs under a display; on Ctrl-C say that the same command continues."""
    try:
        with Display(console) as display:
            return scheduler.go(display.show)
    except KeyboardInterrupt:
        console.print("stopped; the same command continues", highlight=False)
        raise
