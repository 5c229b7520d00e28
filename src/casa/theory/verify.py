"""`casa verify`: check every statement numerically, and print the verdicts as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from casa.errors import UserError
from casa.theory.check import Check, Verdict
from casa.theory.compatible import compatible_checks
from casa.theory.continuous import continuous_checks
from casa.theory.densities import density_checks
from casa.theory.dr_trace import dr_trace_checks
from casa.theory.entropy import entropy_checks, greedy_checks
from casa.theory.gradients import chi_checks, gradient_checks
from casa.theory.hats import hat_checks
from casa.theory.sampling import enumeration_checks
from casa.theory.settling import settling_checks

Progression = Callable[[str, int, int], None]
PLAIN_WIDTH = 120  # of tables written to a file or a pipe

GROUPS: tuple[tuple[str, Callable[[Sequence[int]], list[Check]]], ...] = (
    ("Gradients of the CASA head", gradient_checks),
    ("Gradient angles", chi_checks),
    ("Entropy", entropy_checks),
    ("Greedy limit", greedy_checks),
    ("Compatible function approximation", compatible_checks),
    ("Where the advantage settles", settling_checks),
    ("Continuous actions", continuous_checks),
    ("Continuous actions in closed form", hat_checks),
    ("Any density", density_checks),
    ("Targets against operators", enumeration_checks),
    ("DR-Trace, V-Trace, ReTrace", dr_trace_checks),
)

_STYLES = {Verdict.HOLDS: "green", Verdict.FAILS: "red", Verdict.UNDECIDED: "bold yellow"}


def run(seeds: int = 5, progress: Progression | None = None) -> list[Check]:
    """Every check on seeds 0 … `seeds` - 1.

    `progress(title, done, total)` is called before each group of checks and once at the end.
    """
    if seeds < 1:
        raise UserError(f"seeds must be at least 1, got {seeds}")
    checks: list[Check] = []
    with _one_thread():
        for done, (title, function) in enumerate(GROUPS):
            if progress is not None:
                progress(title, done, len(GROUPS))
            checks += function(range(seeds))
    if progress is not None:
        progress("done", len(GROUPS), len(GROUPS))
    return checks


def render(checks: Sequence[Check]) -> RenderableType:
    """The table of statements, DR-Trace's fixed points, and the count of verdicts, for rich."""
    parts: list[RenderableType] = [_statements(checks)]
    for check in checks:
        if "table" in check.details:
            parts.append(_fixed_points(check.details["table"]))
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    summary = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
    parts.append(Text(f"{len(checks)} statements: {summary}."))
    return Group(*parts)


def to_json(checks: Sequence[Check], seeds: int) -> str:
    """All checks with their raw numbers, as JSON text."""
    document = {"seeds": seeds, "checks": [check.as_json() for check in checks]}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def verify_command(json_path: str | None = None, seeds: int = 5) -> int:
    """Run, print the table, write JSON to `json_path` if given; 0 if every check could be decided, else 1."""
    target = None if json_path is None else Path(json_path)
    if target is not None and not target.parent.is_dir():
        raise UserError(f"json path {json_path!r} is in a directory that does not exist")
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    started = time.perf_counter()
    with _display(console) as progress:
        checks = run(seeds, progress)
    console.print(render(checks))
    console.print(f"{time.perf_counter() - started:.1f} seconds, seeds 0 to {seeds - 1}.")
    if target is not None:
        target.write_text(to_json(checks, seeds), encoding="utf-8")
        console.print(f"Raw numbers: {target}")
    return 0 if all(check.decided for check in checks) else 1


def _statements(checks: Sequence[Check]) -> Table:
    table = Table(title="The paper's statements, checked", show_lines=True, expand=True)
    table.add_column("statement", ratio=6)
    table.add_column("paper", ratio=2)
    table.add_column("measured", ratio=4)
    table.add_column("verdict", no_wrap=True)
    for check in checks:
        words = Text(check.statement.words + "\n").append(check.statement.equation, style="cyan")
        if check.note:
            words.append("\n" + check.note, style="dim")
        number = Text(f"{check.measured:.3g}", style="bold")
        number.append(f" ({check.relation} {check.bound:g})\n").append(check.measure, style="dim")
        verdict = Text(check.verdict.value, style=_STYLES[check.verdict])
        table.add_row(words, check.statement.reference, number, verdict)
    return table


def _fixed_points(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Where DR-Trace (Q centred under π) and V-Trace converge to, and how fast; largest over seeds")
    for name in ("ρ̄", "c̄", "|V*-V^π|", "|V*-V^π̃|", "V-Trace: |V*-V^π|", "|V*-V^π̃|"):
        table.add_column(name, justify="right")
    for name in ("radius", "rate bound", "V-Trace's radius", "U as printed"):
        table.add_column(name, justify="right")
    for row in rows:
        distances = ("limit_to_v_pi", "limit_to_v_pi_tilde", "vtrace_to_v_pi", "vtrace_to_v_pi_tilde")
        rates = ("radius", "bound", "vtrace_radius", "literal_radius")
        table.add_row(
            f"{row['rho_bar']:g}",
            f"{row['c_bar']:g}",
            *(f"{row[name]:.1e}" for name in distances),
            *(f"{row[name]:.3f}" for name in rates),
        )
    return table


@contextmanager
def _display(console: Console) -> Iterator[Progression]:
    """A live progress bar on a terminal, one plain line per group elsewhere."""
    if not console.is_terminal:

        def line(title: str, done: int, total: int) -> None:
            if done < total:
                console.print(f"[{done + 1}/{total}] {title}", markup=False, highlight=False)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(GROUPS))

        def update(title: str, done: int, total: int) -> None:
            bar.update(task, description=title, completed=done, total=total)

        yield update


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread: the matrices are tiny, and synchronizing threads costs 10 times the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
