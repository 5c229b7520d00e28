"""The result of a check: a statement, one measured number, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Whether the measured number confirms the statement."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Statement:
    """A claim, in words and as an equation; `reference` is its place in the paper, or "extra"."""

    key: str
    words: str
    equation: str
    reference: str


@dataclass(frozen=True)
class Check:
    """A statement, the number measured for it, the bound that it is compared with, and the verdict.

    `details` holds the raw numbers behind `measured` (JSON types only).
    """

    statement: Statement
    measure: str
    measured: float
    relation: str
    bound: float
    verdict: Verdict
    note: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def decided(self) -> bool:
        """Whether the number could be computed and lies clearly on one side of the bound."""
        return self.verdict is not Verdict.UNDECIDED

    def as_json(self) -> dict[str, Any]:
        """The check as JSON types; numbers that are not finite become null."""
        return {
            "key": self.statement.key,
            "statement": self.statement.words,
            "equation": self.statement.equation,
            "reference": self.statement.reference,
            "measure": self.measure,
            "measured": _plain(self.measured),
            "relation": self.relation,
            "bound": _plain(self.bound),
            "verdict": self.verdict.value,
            "note": self.note,
            "details": _plain(self.details),
        }


def identity(
    statement: Statement,
    measure: str,
    errors: Iterable[float],
    note: str = "",
    tolerance: float = 1e-9,
    gap: float = 1e-4,
    details: dict[str, Any] | None = None,
) -> Check:
    """max error <= tolerance: holds; >= gap: does not hold; between: undecided, since it may be rounding."""
    error = _maximum(errors)
    if math.isnan(error) or tolerance < error < gap:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.HOLDS if error <= tolerance else Verdict.FAILS
    return Check(statement, measure, error, "<=", tolerance, verdict, note, details or {})


def below(
    statement: Statement,
    measure: str,
    values: Iterable[float],
    bound: float,
    note: str = "",
    margin: float = 1e-9,
    details: dict[str, Any] | None = None,
) -> Check:
    """max value < bound - margin: holds; >= bound + margin: does not hold; at the bound: undecided."""
    value = _maximum(values)
    if math.isnan(value) or abs(value - bound) < margin:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.HOLDS if value < bound else Verdict.FAILS
    return Check(statement, measure, value, "<", bound, verdict, note, details or {})


def _maximum(values: Iterable[float]) -> float:
    listed = list(values)
    # max() may ignore a NaN, but a single NaN must make the check undecided.
    return math.nan if not listed or any(math.isnan(value) for value in listed) else max(listed)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
