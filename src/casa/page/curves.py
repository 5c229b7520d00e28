"""Curves of a run, small enough for a page: columns of numbers that keep their extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

AXES = ("step", "frames", "seconds")
Column = list[float | None]
LARGEST = 1e300
"""Numbers from here on are left out: a page could not scale them."""


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Name -> value of each row, for every name that is a number in some row; None where a row has no number."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
    return {name: [_number(row.get(name)) for row in rows] for name in names}


def buckets(count: int, points: int) -> list[range]:
    """Rows 0 .. count - 1 in runs of neighbours, at most points / 2 of them; single rows if they are few enough."""
    size = 1 if count <= points else -(-count // max(points // 2, 1))
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def thin(column: Column, parts: Sequence[range], axis: bool = False) -> Column:
    """At most two values for each run of neighbours: its smallest and largest, in the order in which they came.

    An `axis` keeps its first and last value instead. So all columns stay equally long, every peak is kept at its
    height, and it moves sideways by less than a bucket.
    """
    kept: Column = []
    for part in parts:
        if len(part) == 1:
            kept.append(column[part[0]])
            continue
        present = [i for i in part if column[i] is not None]
        if axis or not present:
            kept += [column[part[0]], column[part[-1]]]
        else:
            low = min(present, key=lambda i: column[i])  # type: ignore[arg-type, return-value]
            high = max(present, key=lambda i: column[i])  # type: ignore[arg-type, return-value]
            kept += [column[i] for i in sorted((low, high))]
    return kept


def rounded(column: Column, digits: int = 5) -> Column:
    """The values with `digits` significant digits, integers as such: half the characters of a float."""
    return [None if value is None else _short(value, digits) for value in column]


def _short(value: float, digits: int) -> float:
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # NaN is not below


def _number(value: Any) -> float | None:
    return value if _is_number(value) else None
