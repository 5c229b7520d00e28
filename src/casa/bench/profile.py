"""`casa bench --profile`: timeline of the loop's threads, and the kernels that take the most device time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch.profiler import ProfilerActivity, profile

from casa.bench.stages import EndToEnd
from casa.runtime.stopwatch import Span

COLUMNS = 60
SHADES = " ░▒▓█"
TOP = 15
LEARNER_STEPS = 10
"""Learner steps whose kernels are recorded; the profiler's post-processing takes about a second per step."""


def take_profile(loop: EndToEnd, seconds: float) -> dict[str, Any]:
    """Timeline of each thread's work at the end of a window, shares over the whole window, and the kernels."""
    clocks = {"learner": loop.loop.clock}
    actors = loop.system.actors
    clocks |= {f"actor {i + 1}" if len(actors) > 1 else "actor": actor.clock for i, actor in enumerate(actors)}
    for clock in clocks.values():
        clock.spans = []
    loop.measure(seconds)
    spans = {who: clock.spans or [] for who, clock in clocks.items()}
    for clock in clocks.values():
        clock.spans = None
    cuda = loop.system.device.type == "cuda"
    # On a CPU the profiler sees only the thread that started it: the learner's, not the actor's.
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        steps = loop.advance(LEARNER_STEPS)
    return {"timeline": timeline(spans), "kernels": _kernels(found, steps, cuda), "learner_steps": steps}


def timeline(spans: dict[str, list[Span]]) -> dict[str, Any]:
    """For each thread and kind of work: its share of the time, and how busy it was in each column of the timeline.

    The columns cover the end of the window: three times the longest span, or the whole window if it is shorter.
    """
    everything = [span for each in spans.values() for span in each]
    if not everything:
        return {"milliseconds": 0.0, "rows": []}
    first, last = min(s.began for s in everything), max(s.ended for s in everything)
    width = min(last - first, 3 * max(s.ended - s.began for s in everything))
    rows = []
    for who, each in spans.items():
        for what in dict.fromkeys(span.what for span in each):
            mine = [span for span in each if span.what == what]
            share = sum(s.ended - s.began for s in mine) / max(last - first, 1e-9)
            rows.append({"who": who, "what": what, "share": share, "busy": _columns(mine, last - width, last)})
    return {"milliseconds": 1e3 * width, "rows": rows}


def _columns(spans: Iterable[Span], begin: float, end: float) -> list[float]:
    step = (end - begin) / COLUMNS
    busy = [0.0] * COLUMNS
    for span in spans:
        for i in range(COLUMNS):
            left, right = begin + i * step, begin + (i + 1) * step
            busy[i] += max(0.0, min(right, span.ended) - max(left, span.began)) / max(step, 1e-12)
    return [round(min(x, 1.0), 3) for x in busy]


def _kernels(found: Any, steps: int, cuda: bool) -> list[dict[str, Any]]:
    def micro(event: Any) -> float:
        return float(event.self_device_time_total if cuda else event.self_cpu_time_total)

    events = sorted(found.key_averages(), key=micro, reverse=True)
    total = sum(map(micro, events)) or 1.0
    return [
        {
            "name": event.key,
            "ms_per_learner_step": micro(event) / 1e3 / steps,
            "calls_per_learner_step": event.count / steps,
            "share": micro(event) / total,
        }
        for event in events[:TOP]
    ]


def profile_view(record: dict[str, Any]) -> Group:
    """The timeline as rows of shaded blocks, and the kernels as a table."""
    line = record["timeline"]
    times = Table(title=f"the last {line['milliseconds']:.1f} ms, and shares of all the time")
    for column in ("thread", "work", "share", "time →"):
        least = COLUMNS if column == "time →" else 7
        times.add_column(column, no_wrap=True, min_width=least, justify="right" if column == "share" else "left")
    for row in line["rows"]:
        shades = "".join(SHADES[round(x * (len(SHADES) - 1))] for x in row["busy"])
        times.add_row(row["who"], row["what"], f"{100 * row['share']:.0f}%", shades)
    kernels = Table(title="most of the device's time, by kernel")
    for column in ("share", "ms a learner step", "calls", "kernel"):
        kernels.add_column(column, no_wrap=True, justify="left" if column == "kernel" else "right")
    for kernel in record["kernels"]:
        kernels.add_row(
            f"{100 * kernel['share']:.1f}%",
            f"{kernel['ms_per_learner_step']:.3f}",
            f"{kernel['calls_per_learner_step']:.1f}",
            kernel["name"][:70],
        )
    return Group(times, Text(), kernels)
