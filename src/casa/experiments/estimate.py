"""How long a study takes: from its finished runs, or from a few seconds of each family of agents."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from casa.config import recipes
from casa.experiments.scheduler import LOG, Place, Running
from casa.experiments.state import State, last_row, prepare, state_of
from casa.experiments.studies import Planned

START_UP = 4.0
"""Seconds to start a run where none was measured."""
PROBE_SECONDS = 15.0
PROBE_UPDATES = 100
"""A probe ends early after so many learner steps."""


class Speed(NamedTuple):
    """Seconds until a run takes its first step, and agent steps per second from then on."""

    start_up: float
    rate: float


def seconds_of(run: Planned, speed: Speed) -> float:
    """How long the rest of a run takes."""
    left = run.config.steps - last_row(run.path).get("step", 0)
    return speed.start_up + left / speed.rate


def measure(runs: Sequence[Planned], place: Place, note: Callable[[str], None]) -> dict[str, Speed]:
    """Family of agents -> speed; families of which no run has finished are trained for a moment."""
    found, missing = {}, dict[str, Planned]()
    for run in runs:
        if (name := family(run)) not in found:
            done = [last_row(r.path) for r in runs if family(r) == name and _finished(r)]
            if done:
                rates = [row["step"] / max(row["seconds"], 1e-3) for row in done]
                found[name] = Speed(START_UP, statistics.median(rates))
            else:
                missing.setdefault(name, run)
    if missing:
        names = ", ".join(run.version for run in missing.values())
        note(f"measuring the speed of {names}: up to {PROBE_SECONDS:.0f} s")
        found |= _probe(missing, place)
    return found


def family(run: Planned) -> str:
    """Runs of one family are about equally fast."""
    return recipes.get(run.config.recipe).family


def _finished(run: Planned) -> bool:
    return state_of(run.path, run.config.steps) is State.FINISHED


def _probe(missing: dict[str, Planned], place: Place) -> dict[str, Speed]:
    found: dict[str, Speed] = {}
    with tempfile.TemporaryDirectory(prefix="casa-probe-") as directory:
        jobs: dict[str, tuple[Path, Running]] = {}
        began = time.monotonic()
        for name, run in missing.items():
            path = Path(directory) / name
            rows = max(run.config.env.num_envs * 20, 500)
            prepare(path, {**run.settings, "log.every_steps": rows})
            args = ["train", "--config", str(path / "settings.yaml"), "--run-dir", str(path)]
            jobs[name] = path, place.start(args, path / LOG)
        first: dict[str, float] = {}
        busy = set(jobs)
        while busy and time.monotonic() - began < PROBE_SECONDS:
            time.sleep(0.2)
            for name in list(busy):
                path, job = jobs[name]
                row = last_row(path)
                if row:
                    first.setdefault(name, max(time.monotonic() - began - row["seconds"], 0.5))
                if row.get("learner_steps", 0) >= PROBE_UPDATES or job.poll() is not None:
                    busy.discard(name)
        for name, (path, job) in jobs.items():
            if row := last_row(path):
                found[name] = Speed(first.get(name, START_UP), max(row["steps_per_second"], 1e-3))
            job.kill()
    return found


def total_seconds(runs: Sequence[Planned], speeds: dict[str, Speed], slots: int) -> float | None:
    """Wall time of the runs that are left; None if a speed is not known. Slots are assumed not to slow each other."""
    left = [run for run in runs if not _finished(run)]
    if any(family(run) not in speeds for run in left):
        return None
    each = [seconds_of(run, speeds[family(run)]) for run in left]
    return max(sum(each) / max(min(slots, len(each)), 1), max(each, default=0.0))

