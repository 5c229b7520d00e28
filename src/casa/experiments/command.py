"""`casa experiment`: plan, run, collect, draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from casa.errors import UserError
from casa.experiments import estimate, figures
from casa.experiments.collect import Curve, in_order, read_csv, read_runs, write_csv
from casa.experiments.display import follow
from casa.experiments.places import Where, open_place
from casa.experiments.scheduler import Place, Progress, Scheduler
from casa.experiments.state import State, check_settings, state_of
from casa.experiments.studies import STUDIES, Planned, Study, plan
from casa.experiments.tables import table, write_table
from casa.run.display import duration


@dataclass(frozen=True)
class Options:
    """How studies are run."""

    directory: Path
    where: Where
    minutes: float = 0.0
    plan_only: bool = False
    figures_only: bool = False


def run_studies(studies: Sequence[Study], options: Options, console: Console) -> int:
    """Run the studies together, so that a run that two of them share is done once; status 1 if a run failed."""
    if not studies:
        raise UserError(f"name a study: {', '.join(STUDIES)} or FILE.yaml")
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot use {options.directory} as --dir: {error.strerror or error}") from None
    planned = {study.name: plan(study, options.directory) for study in studies}
    runs = list({run.path: run for each in planned.values() for run in each}.values())
    runs.sort(key=lambda run: run.seed)  # complete seeds first
    if options.figures_only:
        _write(studies, planned, options.directory, console)
        return 0
    for run in runs:
        check_settings(run.path, dict(run.settings))
    with open_place(options.where, options.directory, runs, lambda text: console.print(text, highlight=False)) as place:
        _show_plan(studies, runs, place, options, console)
        if options.plan_only:
            return 0
        scheduler = Scheduler(runs, place, options.minutes * 60 or None)
        progress = follow(scheduler, console)
    _write(studies, planned, options.directory, console)
    return _report(progress, console)


def _show_plan(
    studies: Sequence[Study], runs: Sequence[Planned], place: Place, options: Options, console: Console
) -> None:
    shown = Table(title="plan")
    for column in ("study", "versions", "environments", "seeds", "steps", "runs"):
        shown.add_column(column, justify="left" if column == "study" else "right")
    for study in studies:
        count = len(study.versions) * len(study.envs) * study.seeds
        sizes = (len(study.versions), len(study.envs), study.seeds, f"{study.steps:,}", count)
        shown.add_row(study.name, *map(str, sizes))
    console.print(shown)
    states = [state_of(run.path, run.config.steps) for run in runs]
    counts = {state: states.count(state) for state in State}
    note = f"{len(runs)} runs in {options.directory / 'runs'}, {place.slots} at a time: {counts[State.FINISHED]} are "
    note += f"finished, {counts[State.UNFINISHED]} will be resumed, {counts[State.NEW]} are new"
    note += f", {counts[State.BUSY]} are in use" if counts[State.BUSY] else ""
    console.print(note, highlight=False, soft_wrap=True)
    if counts[State.FINISHED] < len(runs):
        speeds = estimate.measure(runs, place, lambda text: console.print(text, highlight=False))
        for name, speed in speeds.items():
            console.print(f"{name}: {speed.rate:,.0f} steps/s, {speed.start_up:.0f} s to start", highlight=False)
        seconds = estimate.total_seconds(runs, speeds, place.slots)
        told = "unknown, a probe wrote no row" if seconds is None else f"about {duration(seconds)}"
        console.print(f"estimated time: {told}", highlight=False)


def _write(
    studies: Sequence[Study], planned: dict[str, list[Planned]], directory: Path, console: Console
) -> None:
    """Numbers, table and figure of each study; from its CSV file where the runs are not here."""
    for study in studies:
        stem = directory / study.name
        numbers = stem.with_name(f"{study.name}-rows.csv")
        curves = read_runs(planned[study.name])
        if curves:
            write_csv(curves, numbers)
        elif numbers.exists():
            curves = read_csv(numbers)
        else:
            console.print(f"{study.name}: no run in {directory} has written a row yet", highlight=False)
            continue
        curves = in_order(curves, study)
        write_table(curves, study, stem)
        _show_table(curves, study, console)
        written = [numbers, *(stem.with_name(f"{study.name}-table.{kind}") for kind in ("md", "csv"))]
        if figures.available():
            written += figures.draw(curves, study, stem)
        else:
            console.print("no figures: they need matplotlib (pip install 'casa-rl[report]'), then add --figures-only")
        console.print("wrote " + ", ".join(map(str, written)), highlight=False, soft_wrap=True)


SHORT = ("version", "runs", "IQM", "95% interval", "chi", "cos_beta", "cos_v_pi", "entropy at the end")
"""Columns of the table that fit a terminal; the files have all."""


def _show_table(curves: Sequence[Curve], study: Study, console: Console) -> None:
    how, rows = table(curves, study)
    shown = Table(title=study.name, caption=f"IQM: of the {how}")
    for column in SHORT:
        shown.add_column(column, justify="left" if column == "version" else "right")
    for row in rows:
        shown.add_row(*(row.get(column, "") for column in SHORT))
    console.print(shown)


def _report(progress: Progress, console: Console) -> int:
    if progress.waiting:
        console.print(f"{len(progress.waiting)} runs are left; the same command continues them", highlight=False)
    if progress.failed:
        console.print(f"{len(progress.failed)} of {progress.total} runs failed; see output.log in their directories")
    return 1 if progress.failed else 0
