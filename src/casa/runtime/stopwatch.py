"""Measures where a thread spends its time: seconds per stage and, on request, every span."""

from __future__ import annotations

import time
from typing import NamedTuple


class Span(NamedTuple):
    """An activity `what` from `began` to `ended`, in seconds of `time.perf_counter`."""

    what: str
    began: float
    ended: float


class Stopwatch:
    """seconds[stage] += ended - began; also records every span while `spans` is a list."""

    def __init__(self, *stages: str) -> None:
        self.seconds = dict.fromkeys(stages, 0.0)
        self.spans: list[Span] | None = None

    def add(self, stage: str, began: float, what: str = "") -> float:
        """Add a span from `began` to now, named `what` (default: the stage); returns the current time."""
        now = time.perf_counter()
        self.seconds[stage] += now - began
        if self.spans is not None:
            self.spans.append(Span(what or stage, began, now))
        return now
