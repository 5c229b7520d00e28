"""A recording in the terminal while it is made: the frame in half-blocks, beside it the bars of π and Q."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from functools import cache
from itertools import groupby

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from casa.envs.types import Array
from casa.run.display import number, sparkline
from casa.watch.record import Cast, Moment, Part

SPARKS = "▁▂▃▄▅▆▇█"
BARS = 52
"""Columns of the bars beside the frame."""


def show_live(console: Console, cast: Cast, moments: Iterable[Moment], speed: float = 1.0) -> Moment | None:
    """Show each moment for as long as the environment's own speed says, or as fast as it comes; returns the last."""
    values: deque[float] = deque(maxlen=400)
    last = None
    with Live(console=console, auto_refresh=False, transient=False) as live:
        due = time.perf_counter()
        for moment in moments:
            last = moment
            if moment.v is not None:
                values.append(moment.v)
            live.update(_view(console, cast, moment, values), refresh=True)
            due = max(due + 1 / (cast.fps * speed), time.perf_counter() - 0.1)
            time.sleep(max(0.0, due - time.perf_counter()))
    return last


def _view(console: Console, cast: Cast, moment: Moment, values: Iterable[float]) -> Table:
    table = Table.grid(padding=(0, 2))
    bars = _bars(cast, moment)
    facts = Text(f"{cast.title}\n", style="bold")
    facts.append(f"return {number(moment.score)}  V {number(moment.v)}  entropy {number(moment.entropy)}", style="dim")
    beside = Table.grid()
    for part in (facts, bars, Text(sparkline(list(values), 40), style="green")):
        beside.add_row(part)
    if moment.frame is None:
        table.add_row(beside)
    else:
        columns = max(console.width - BARS, 16)
        table.add_row(HalfBlocks(moment.frame, columns, max(console.height - 2, 8)), beside)
    return table


def _bars(cast: Cast, moment: Moment) -> Table:
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="dim")
    table.add_column("action")
    for name, values in (("π", moment.pi), ("Q", moment.q)):
        if values is not None:
            table.add_column(name)
    first = 0
    for d, part in enumerate(cast.parts):
        block = slice(first, first := first + len(part.options))
        if part.continuous:
            table.add_row(*_curves(part, moment, d, block))
            continue
        for i, name in enumerate(part.options):
            taken = bool(moment.action) and moment.action[d] == i
            cells = [Text(f"{'▸' if taken else ' '}{name}", style="bold green" if taken else "")]
            if moment.pi is not None:
                p = moment.pi[block]
                cells.append(Text(f"{_bar(p[i] / p.max())} {p[i]:.2f}", style="bright_blue"))
            if moment.q is not None:
                q = moment.q[block]
                share = (q[i] - q.min()) / (np.ptp(q) or 1.0)
                cells.append(Text(f"{_bar(share)} {number(float(q[i]))}", style="dark_orange"))
            table.add_row(*cells)
    return table


def _curves(part: Part, moment: Moment, d: int, block: slice) -> list[Text]:
    """A continuous part in one row: its name and value, the density and Q over its range."""
    value = f" {part.chosen(moment.action[d])}" if moment.action else ""
    cells = [Text(f" {part.name}{value}", style="bold green")]
    for values, style in ((moment.pi, "bright_blue"), (moment.q, "dark_orange")):
        if values is not None:
            y = values[block]
            height = (y - y.min()) / (np.ptp(y) or 1.0) * (len(SPARKS) - 1)
            cells.append(Text("".join(SPARKS[round(x)] for x in height.tolist()), style=style))
    return cells


def _bar(share: float, width: int = 9) -> str:
    eighths = round(float(share) * width * 8)
    text = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return text.ljust(width)


class HalfBlocks:
    """An RGB picture in a terminal: each character shows two pixels, one above the other."""

    def __init__(self, frame: Array, columns: int, rows: int) -> None:
        height, width = frame.shape[:2]
        scale = min(columns / width, 2 * rows / height, 1.0)
        self.pixels = shrink(frame, max(2 * round(height * scale / 2), 2), max(round(width * scale), 1))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines of upper half-blocks, coloured by the upper pixel on a background of the lower one."""
        for upper, lower in zip(self.pixels[::2], self.pixels[1::2], strict=True):
            pairs = np.concatenate((upper, lower), -1).tolist()
            for colours, run in groupby(pairs):  # neighbours of one colour are one piece: a tenth of the characters
                yield Segment("▀" * len(list(run)), _style(*colours))
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """As wide as the picture."""
        return Measurement(self.pixels.shape[1], self.pixels.shape[1])


@cache
def _style(red: int, green: int, blue: int, red2: int, green2: int, blue2: int) -> Style:
    return Style(color=Color.from_rgb(red, green, blue), bgcolor=Color.from_rgb(red2, green2, blue2))


def shrink(frame: Array, height: int, width: int) -> Array:
    """The mean colour of each cell of a grid of `height` x `width`, in steps of 8, so that there are few colours."""
    rows = np.linspace(0, frame.shape[0], height, endpoint=False).astype(int)
    columns = np.linspace(0, frame.shape[1], width, endpoint=False).astype(int)
    sums = np.add.reduceat(np.add.reduceat(frame.astype(np.float64), rows, 0), columns, 1)
    area = np.outer(np.diff([*rows, frame.shape[0]]), np.diff([*columns, frame.shape[1]]))[..., None]
    found: Array = (sums / area).astype(np.uint8) & 0xF8
    return found
