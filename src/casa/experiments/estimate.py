"""How long a study takes: from its runs so far, or from a few seconds of each family of agents."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from casa.config import recipes
from casa.experiments.scheduler import LOG, Place, Running
from casa.experiments.state import State, last_row, prepare, state_of
from casa.experiments.studies import Planned

START_UP = 4.0
"""Seconds to start a run where none was measured."""
PROBE_SECONDS = 10.0
"""Length of a probe from its first row on: what comes before is start and warm-up."""
PROBE_LIMIT = 90.0
"""And from its start on, at most."""
PROBE_UPDATES = 100
"""A probe ends early after so many learner steps from its first row on."""


class Speed(NamedTuple):
    """Seconds until a run takes its first step, agent steps per second from then on, bytes of a checkpoint."""

    start_up: float
    rate: float
    checkpoint: int = 0


def seconds_of(run: Planned, speed: Speed) -> float:
    """How long the rest of a run takes."""
    left = run.config.steps - last_row(run.path).get("step", 0)
    return speed.start_up + left / speed.rate


def measure(runs: Sequence[Planned], place: Place, note: Callable[[str], None]) -> dict[str, Speed]:
    """Family of agents -> speed; families of which no run has got far enough are trained for a moment."""
    found, missing = {}, dict[str, Planned]()
    for run in runs:
        if (name := family(run)) not in found:
            done = [r for r in runs if family(r) == name and _measured(r)]
            if done:
                rows = [last_row(r.path) for r in done]
                rate = statistics.median(row["step"] / max(row["seconds"], 1e-3) for row in rows)
                found[name] = Speed(START_UP, rate, max(checkpoint_bytes(r.path) for r in done))
            else:
                missing.setdefault(name, run)
    if missing:
        names = ", ".join(run.version for run in missing.values())
        note(f"measuring the speed of {names}: about {2 * PROBE_SECONDS:.0f} s, {PROBE_LIMIT:.0f} s at most")
        found |= _probe(missing, place)
    return found


def family(run: Planned) -> str:
    """Runs of one family are about equally fast."""
    return recipes.get(run.config.recipe).family


def _measured(run: Planned) -> bool:
    return _finished(run) or last_row(run.path).get("learner_steps", 0) >= PROBE_UPDATES


def _finished(run: Planned) -> bool:
    return state_of(run.path, run.config.steps) is State.FINISHED


def checkpoint_bytes(path: Path) -> int:
    """Size of the largest checkpoint of a run; 0 if it has none."""
    folders = (path / "checkpoints").glob("step-*")
    return max((sum(file.stat().st_size for file in folder.iterdir()) for folder in folders), default=0)


def _probe(missing: dict[str, Planned], place: Place) -> dict[str, Speed]:
    """Train each family for a moment, with every slot busy: runs that share a machine slow each other."""
    found: dict[str, Speed] = {}
    with tempfile.TemporaryDirectory(prefix="casa-probe-", dir=place.scratch) as directory:
        jobs: dict[tuple[str, int], tuple[Path, Running]] = {}
        began = time.monotonic()
        for name, run in missing.items():
            for copy in range(max(place.slots // len(missing), 1)):
                path = Path(directory) / f"{name}-{copy}"
                rows = max(run.config.env.num_envs * 20, 500)
                prepare(path, {**run.settings, "log.every_steps": rows})
                args = ["train", "--config", str(path / "settings.yaml"), "--run-dir", str(path)]
                jobs[name, copy] = path, place.start(args, path / LOG)
        first: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}  # seconds to start, first row
        busy = set(jobs)
        while busy and time.monotonic() - began < PROBE_LIMIT:
            time.sleep(0.2)
            for key in list(busy):
                path, job = jobs[key]
                if row := last_row(path):
                    started = max(time.monotonic() - began - row["seconds"], 0.5)
                    _, before = first.setdefault(key, (started, row))
                    updates = row.get("learner_steps", 0) - before.get("learner_steps", 0)
                    if updates >= PROBE_UPDATES or row["seconds"] - before["seconds"] >= PROBE_SECONDS:
                        busy.discard(key)
                if job.poll() is not None:
                    busy.discard(key)
        for _, job in jobs.values():
            job.kill()
        for name in missing:
            mine = [key for key in first if key[0] == name]
            if mine:
                rate = statistics.median(_rate(first[key][1], last_row(jobs[key][0])) for key in mine)
                size = max(checkpoint_bytes(jobs[key][0]) for key in mine)
                found[name] = Speed(statistics.median(first[key][0] for key in mine), rate, size)
    return found


def _rate(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Agent steps per second between two rows; of a single row, its own."""
    seconds = after["seconds"] - before["seconds"]
    return max((after["step"] - before["step"]) / seconds if seconds > 0 else after["steps_per_second"], 1e-3)


def total_seconds(runs: Sequence[Planned], speeds: dict[str, Speed], slots: int) -> float | None:
    """Wall time of the runs that are left; None if a speed is not known."""
    left = [run for run in runs if not _finished(run)]
    if any(family(run) not in speeds for run in left):
        return None
    each = [seconds_of(run, speeds[family(run)]) for run in left]
    return wall_seconds(each, slots)


def wall_seconds(seconds: Sequence[float], slots: int) -> float:
    """Time of jobs of these lengths, `slots` at a time: at least the longest one."""
    return max(sum(seconds) / max(min(slots, len(seconds)), 1), max(seconds, default=0.0))

