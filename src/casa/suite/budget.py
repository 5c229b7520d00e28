"""What a suite costs: runs, hours and disk, from the throughput that this machine is measured to have."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from casa.experiments import estimate
from casa.experiments.scheduler import Place
from casa.experiments.state import State
from casa.experiments.studies import Planned
from casa.suite.schedule import SuiteScheduler, evaluation_of
from casa.suite.spec import Suite

MACHINES = (1, 2, 4, 8, 16)
CHECKPOINTS = 3
"""A run keeps the newest, the best and the last good one."""


def show_plan(
    suite: Suite,
    runs: Sequence[Planned],
    place: Place,
    scheduler: SuiteScheduler,
    directory: Path,
    console: Console,
    rate: float = 0.0,
) -> None:
    """Print what is to be done and what it costs.

    Speeds are measured, unless runs here have got far enough to tell, or `rate` (agent steps per second of each run) is
    given: that of another machine.
    """
    frames = suite.steps * runs[0].config.env.frame_skip if all(env.startswith("ALE/") for env in suite.envs) else None
    length = f"{suite.steps:,} steps" + (f" ({frames:,} frames)" if frames else "")

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    say(
        f"{suite.name}: {len(suite.recipes)} recipes x {len(suite.envs)} environments x {len(suite.seeds)} seeds, "
        f"{length} each; then {suite.evaluation.episodes} episodes of the {suite.evaluation.policy} policy"
    )
    states = [scheduler.state(run) for run in runs]
    counts = {state: states.count(state) for state in State}
    say(
        f"{len(runs)} runs in {directory / 'runs'}, {place.slots} at a time: {counts[State.FINISHED]} are finished, "
        f"{counts[State.UNFINISHED]} will be resumed or evaluated, {counts[State.NEW]} are new"
        + (f", {counts[State.BUSY]} are in use" if counts[State.BUSY] else "")
    )
    left = [run for run, state in zip(runs, states, strict=True) if state is not State.FINISHED]
    if not left:
        return
    families = {estimate.family(run) for run in left}
    speeds = dict.fromkeys(families, estimate.Speed(estimate.START_UP, rate)) if rate else {}
    speeds = speeds or estimate.measure(runs, place, say)
    for name, speed in speeds.items():
        say(f"{name}: {speed.rate:,.0f} steps/s in each of {place.slots} runs, {speed.start_up:.0f} s to start one")
    if not families <= speeds.keys():
        say("the time is unknown: a probe wrote no row")
        return
    each = _evaluation_seconds(runs, suite)
    seconds = [estimate.seconds_of(run, speeds[estimate.family(run)]) + (each or 0.0) for run in left]
    console.print(_table(seconds, place.slots))
    say("evaluation is " + ("not counted: none is finished here" if each is None else f"counted, {each:.0f} s a run"))
    disk = sum(CHECKPOINTS * speeds[estimate.family(run)].checkpoint for run in left)
    if not disk:
        return
    free = shutil.disk_usage(_existing(directory)).free
    say(f"checkpoints take at most {disk / 1e9:,.1f} GB in all; {free / 1e9:,.0f} GB are free here")
    if disk > free:
        say("warning: that is more than the disk has")


def _table(seconds: Sequence[float], slots: int) -> Table:
    shown = Table(title=f"estimated time of {len(seconds)} runs")
    for column in ("machines like this", "hours", "days"):
        shown.add_column(column, justify="right")
    for machines in MACHINES:
        hours = estimate.wall_seconds(seconds, slots * machines) / 3600
        shown.add_row(str(machines), f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}", f"{hours / 24:,.2f}")
        if slots * machines >= len(seconds):
            break
    return shown


def _evaluation_seconds(runs: Sequence[Planned], suite: Suite) -> float | None:
    """Mean seconds of the evaluations that are finished; None if there is none."""
    found = [done for run in runs if (done := evaluation_of(run, suite.evaluation)) is not None]
    return sum(done["modes"][suite.evaluation.policy]["seconds"] for done in found) / len(found) if found else None


def _existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
