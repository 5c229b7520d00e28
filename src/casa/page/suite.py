"""The page of a suite: tables to sort and filter, performance profiles, one learning curve a game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from casa.page.curves import Column, rounded
from casa.page.document import document


class Table(NamedTuple):
    """`columns`: title, kind (text, score, percent), whether an empty cell is a missing run."""

    title: str
    columns: Sequence[tuple[str, str, bool]]
    rows: Sequence[Sequence[str | float | None]]
    notes: Sequence[str]


class Chart(NamedTuple):
    """`lines`: name, x, y, low, high. `xlabel`: unit of x."""

    title: str
    xlabel: str
    lines: Sequence[tuple[str, Column, Column, Column, Column]]


def suite_page(
    title: str,
    made: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    profiles: Sequence[Chart],
    games: Sequence[Chart],
) -> str:
    """One HTML file. `profiles` have axes of their own; `games` share theirs."""
    data = {
        "title": title,
        "made": made,
        "facts": list(facts),
        "tables": [table._asdict() for table in tables],
        "profiles": [_chart(chart) for chart in profiles],
        "games": [_chart(chart) for chart in games],
    }
    return document(title, ("base.js", "chart.js", "suite.js"), data, "suite.html")


def _chart(chart: Chart) -> dict[str, Any]:
    keys = ("x", "y", "low", "high")
    lines = [
        {"name": name, **{key: rounded(values) for key, values in zip(keys, columns, strict=True)}}
        for name, *columns in chart.lines
    ]
    return {"title": chart.title, "xlabel": chart.xlabel, "lines": lines}
