"""Valid values of fields: the marks (annotations) that `fields.py` puts on types, and the check that reads them."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from casa.errors import UserError, nearest, unknown
from casa.tables import TABLES


@dataclass(frozen=True)
class Range:
    """Numbers for which `holds` is true; `text` describes them: "> 0"."""

    text: str
    holds: Callable[[float], bool]


@dataclass(frozen=True)
class Named:
    """The name of an entry of the table `kind`, or "auto" if `auto` is set."""

    kind: str
    auto: bool = False


@dataclass(frozen=True)
class Text:
    """Strings for which `holds` is true; `text` describes them."""

    text: str
    holds: Callable[[str], bool] = lambda value: True


LARGEST = 10**18 - 1
"""Of any whole number: the name of a checkpoint has at most 18 digits."""
POSITIVE = Range("> 0", lambda x: x > 0)
NOT_NEGATIVE = Range(">= 0", lambda x: x >= 0)
AT_LEAST_ONE = Range(">= 1", lambda x: x >= 1)
SHARE = Range("above 0 and at most 1", lambda x: 0 < x <= 1)
FRACTION = Range("between 0 and 1", lambda x: 0 <= x <= 1)
BELOW_ONE = Range("at least 0 and below 1", lambda x: 0 <= x < 1)
MODERATE = Range("from -1e+06 to 1e+06", lambda x: abs(x) <= 1e6)
TEMPERATURE = Range("from 1e-06 to 1e+06", lambda x: 1e-6 <= x <= 1e6)  # outside, π is greedy or uniform


def integers(low: int, high: int) -> Range:
    """Integers low .. high, both included."""
    return Range(f"an integer from {low} to {high}", lambda x: low <= x <= high)


def bare(hint: Any) -> Any:
    """A field's type without its marks."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def check(config: Any, prefix: str = "") -> None:
    """Raise a UserError for the first field with a wrong type or a value out of range."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check(value, f"{prefix}{field.name}.")
        else:
            check_value(f"{prefix}{field.name}", value, hints[field.name])


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise a UserError unless `value` fits the type and the marks of the field `name`."""
    kind = bare(hint)
    marks = typing.get_args(hint)[1:] if kind is not hint else ()
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple):
            raise UserError(f"{name} must be several values, got {value!r}")
        parts = typing.get_args(kind)
        kinds = [parts[0]] * len(value) if len(parts) == 2 and parts[1] is Ellipsis else list(parts)
        if len(value) != len(kinds):
            raise UserError(f"{name} must be {len(kinds)} values, got {value!r}")
        for item, each in zip(value, kinds, strict=True):
            _check_one(name, item, each, marks)
    else:
        _check_one(name, value, kind, marks)


def _check_one(name: str, value: Any, kind: Any, marks: tuple[Any, ...]) -> None:
    if typing.get_origin(kind) is Literal:
        options = typing.get_args(kind)
        if value not in options:
            near = nearest(str(value), options)
            hint = f"; did you mean {near!r}?" if near else ""
            listed = " or ".join([", ".join(map(repr, options[:-1])), repr(options[-1])])
            raise UserError(f"{name} must be {listed}, got {value!r}{hint}")
        return
    for mark in marks or (None,):
        _check_mark(name, value, kind, mark)


def _check_mark(name: str, value: Any, kind: Any, mark: Any) -> None:
    types = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}[kind]
    right_type = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if isinstance(mark, Named) and right_type:
        if not (mark.auto and value == "auto") and value not in (table := TABLES[mark.kind]):
            raise unknown(name, value, table)
        return
    holds = right_type and (not isinstance(value, float) or math.isfinite(value))
    if mark is not None:
        holds = holds and mark.holds(value)
    if holds and isinstance(value, int) and abs(value) > LARGEST:
        raise UserError(f"{name} must be at most 10^18 - 1, got a number of {len(str(abs(value)))} digits")
    if not holds:
        plain = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise UserError(f"{name} must be {plain if mark is None else mark.text}, got {shown}")
