"""Where a thread's time goes: seconds by stage, and on request every span."""

from __future__ import annotations

import time
from typing import NamedTuple


class Span(NamedTuple):
    """What was done from `began` to `ended`, in seconds of `time.perf_counter`."""

    what: str
    began: float
    ended: float


class Stopwatch:
    """seconds[stage] += ended - began; the spans too while `spans` is a list."""

    def __init__(self, *stages: str) -> None:
        self.seconds = dict.fromkeys(stages, 0.0)
        self.spans: list[Span] | None = None

    def add(self, stage: str, began: float, what: str = "") -> float:
        """Take notice of a span that ends now, called `what` where that says more than its stage; now."""
        now = time.perf_counter()
        self.seconds[stage] += now - began
        if self.spans is not None:
            self.spans.append(Span(what or stage, began, now))
        return now
