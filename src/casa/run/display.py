"""Console output: a live display in a terminal, plain lines when piped, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from casa import atari57
from casa.config.fields import RunConfig
from casa.engines.system import System
from casa.errors import printable
from casa.run.messages import say

_SPARKS = "▁▂▃▄▅▆▇█"


class Display:
    """Shows the latest row of metrics; `every` is the minimum number of seconds between plain lines."""

    def __init__(self, console: Console, config: RunConfig, system: System, mode: str) -> None:
        self.console, self.config, self.system, self.mode = console, config, system, mode
        self.every = config.log.every_seconds
        self.history: list[float] = []
        self.last_line = 0.0
        self.row_at = time.perf_counter()  # when the latest row came
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self.width = console.width

    def __enter__(self) -> Display:
        self.note(headline(self.config, self.system, self.mode))
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live is not None:
            self.live.stop()

    def note(self, text: str) -> None:
        """Print a message that stays on the screen."""
        say(self.console, text)

    def show(self, row: dict[str, Any], final: bool = False) -> None:
        """Show a new row of metrics."""
        self.row_at = time.perf_counter()
        if row["return"] is not None:
            self.history.append(row["return"])
        self._draw(row, final)

    def _draw(self, row: dict[str, Any], final: bool = False) -> None:
        if self.live is not None:
            self._clear_if_resized()
            self.live.update(self._panel(row), refresh=True)
        elif final or time.perf_counter() - self.last_line >= self.every:
            self.last_line = time.perf_counter()
            self.console.print(line(row, self.config.steps), highlight=False, soft_wrap=True)

    def _clear_if_resized(self) -> None:
        """Clear the screen after a resize: a narrower terminal wraps the old panel, and `Live` miscounts its lines."""
        if self.console.width != self.width:
            self.width = self.console.width
            self.console.clear()

    def tick(self, row: dict[str, Any], steps: int) -> None:
        """Show the latest row with the current steps and speed; before the first row, only the steps."""
        if row:
            elapsed = time.perf_counter() - self.row_at
            speed = (steps - row["step"]) / elapsed if elapsed > 5 else row["steps_per_second"]
            frames = steps * self.system.spec.frames_per_step
            self._draw({**row, "step": steps, "frames": frames, "steps_per_second": speed})
            return
        share, every = 100 * steps / self.config.steps, self.config.log.every_steps
        text = f"{share:3.0f}% steps {steps:,}, of {every:,} to a report"
        if self.live is not None:
            self.live.update(Text(text))
        else:
            self.console.print(text, highlight=False)

    def _panel(self, row: dict[str, Any]) -> Panel:
        table = Table.grid(padding=(0, 3))
        cells = [Text.assemble((f"{name} ", "dim"), value) for name, value in facts(row, self.config.steps)]
        for i in range(0, len(cells), 4):
            table.add_row(*cells[i : i + 4])
        bar = ProgressBar(total=self.config.steps, completed=row["step"], width=None)
        chart = Text(sparkline(self.history), style="green")
        rows = Table.grid(expand=True)  # a bar alone ends without a newline and would hide the next row
        for part in (bar, table, chart):
            rows.add_row(part)
        return Panel(rows, title=Text(printable(f"{self.config.recipe} on {self.config.env.id}")))


def headline(config: RunConfig, system: System, mode: str) -> str:
    """One line that describes the run: recipe, preset, environment, network, device, precision, loop."""
    parameters = sum(p.numel() for p in system.network.parameters())
    return (
        f"{config.recipe} ({config.preset} preset) on {config.env.id}: {config.steps:,} steps "
        f"({config.steps * system.spec.frames_per_step:,} frames), {config.env.num_envs} environments, "
        f"{parameters:,} parameters, {system.device.type} {system.config.precision}, {mode}, "
        f"seed {config.seed}"
    )


def facts(row: dict[str, Any], steps: int) -> list[tuple[str, str]]:
    """(name, value) pairs to show, in order."""
    left = (steps - row["step"]) / max(row["steps_per_second"], 1e-3)
    found = [
        ("steps", f"{row['step']:,}"),
        ("frames", f"{row['frames']:,}"),
        ("speed", f"{row['steps_per_second']:,.0f} steps/s"),
        ("left", duration(left)),
        ("return", number(row["return"])),
        ("HNS", f"{100 * row['hns']:.1f}%" if row.get("hns") is not None else "-"),
        ("episodes", f"{row['episodes']:,}"),
        ("limit", row["bottleneck"]),
    ]
    more = {"entropy": "entropy", "loss_v": "L_V", "loss_q": "L_Q", "loss_pi": "J", "policy_lag": "lag"}
    found += [(label, number(row.get(name))) for name, label in more.items()]
    if "slowest_worker" in row:
        found.append(("slowest", f"worker {row['slowest_worker']}, {row['slowest_worker_speed']:,.0f} steps/s"))
    if row.get("worker_restarts"):
        found.append(("restarted", f"{row['worker_restarts']} workers"))
    if row["skipped"]:
        found.append(("skipped", f"{row['skipped']} learner steps"))
    return found


def line(row: dict[str, Any], steps: int) -> str:
    """The `facts` of a row as one plain line."""
    shown = [f"{name} {value}" for name, value in facts(row, steps) if value != "-"]
    return f"{100 * row['step'] / steps:3.0f}% " + "  ".join(shown)


def summary(config: RunConfig, system: System, row: dict[str, Any], written: Iterable[str]) -> Group:
    """Summary of a run: its score beside the random, human and paper scores of the game, and the files written."""
    parts: list[Any] = []
    score = row["return"]
    name = printable(f"{config.recipe} on {config.env.id}")
    table = Table(title=Text(f"{name} after {row['step']:,} steps ({row['frames']:,} frames)"))
    game = system.spec.atari_game
    for column in ("score of", "mean return", "HNS", "SABER")[: 4 if game in atari57.GAMES else 2]:
        table.add_column(column, justify="left" if column == "score of" else "right")
    if game is not None and game in atari57.GAMES:
        known = atari57.reference(game)
        rows = [("this run, last 100 episodes", score), ("random play", known.random), ("human", known.human)]
        rows += [("CASA, paper, 200M frames", known.casa), ("world record", known.world_record)]
        for name, value in rows:
            if value is None:
                table.add_row(name, "no episode ended", "-", "-")
            else:
                hns, saber = atari57.hns(game, value), atari57.saber(game, value)
                table.add_row(name, number(value), f"{100 * hns:.1f}%", f"{100 * saber:.2f}%")
    else:
        table.add_row("this run, last 100 episodes", "no episode ended" if score is None else number(score))
    parts.append(table)
    parts.append(Text(f"{duration(row['seconds'])}, {row['learner_steps']:,} learner steps, wrote:"))
    parts += [Text(f"  {printable(path)}") for path in written]
    return Group(*parts)


def sparkline(values: list[float], width: int = 60) -> str:
    """The values as text bars, averaged into at most `width` bins, and their range."""
    if len(values) < 2:
        return ""
    step = -(-len(values) // width)
    means = [sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)]
    low, high = min(means), max(means)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[int((value - low) * scale)] for value in means) + f"  {low:.1f} to {high:.1f}"


def number(value: float | None) -> str:
    """A number as short text; None: "-"."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as text: 1h 02m, 2m 05s, 7s."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 60}m {whole % 60:02d}s" if whole >= 60 else f"{whole}s"
