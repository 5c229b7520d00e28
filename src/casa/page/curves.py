"""Curves of a run, small enough for a page: columns of numbers that keep their extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

AXES = ("step", "frames", "seconds")
Column = npt.NDArray[np.float64]
"""One number for each row; NaN where a row has none."""
LARGEST = 1e300
"""Numbers from here on are left out: a page could not scale them."""


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Name -> column, for every name that is a number in some row."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: _column([row.get(name) for row in rows]) for name in names}
    return {name: column for name, column in found.items() if not np.isnan(column).all()}


def bucket_size(count: int, points: int) -> int:
    """The number of neighbouring rows that become two points, so that `count` rows become at most `points`."""
    return 1 if count <= points else -(-count // max(points // 2, 1))


def thin(column: Column, size: int, axis: bool = False) -> Column:
    """Two values for each `size` neighbours: the smallest and the largest, in the order in which they came.

    An `axis` keeps its first and last value instead. So all columns stay equally long, every peak is kept at its
    height, and it moves sideways by less than `size` rows.
    """
    if size == 1:
        return column
    number = -(-len(column) // size)
    rows = np.full((number, size), np.nan)
    rows.flat[: len(column)] = column
    if axis:
        first, second = np.zeros(number, int), np.full(number, size - 1)
        second[-1] = len(column) - 1 - (number - 1) * size
    else:
        missing = np.isnan(rows)
        low, high = np.where(missing, np.inf, rows).argmin(1), np.where(missing, -np.inf, rows).argmax(1)
        first, second = np.minimum(low, high), np.maximum(low, high)
    each = np.arange(number)
    return np.stack((rows[each, first], rows[each, second]), 1).ravel()


def rounded(column: Column, digits: int = 5) -> list[float | None]:
    """The values with `digits` significant digits, for JSON: None for NaN, integers as such."""
    return [None if value != value else _short(value, digits) for value in column.tolist()]


def _short(value: float, digits: int) -> float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{digits}g}")


def _column(values: list[Any]) -> Column:
    if set(map(type, values)) <= {float, type(None)}:  # as nearly all columns are
        column = np.array(values, np.float64)
        column[~(np.abs(column) < LARGEST)] = np.nan
        return column
    return np.array([value if _is_number(value) else np.nan for value in values], np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # NaN is not below
