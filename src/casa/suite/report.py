"""`casa suite report`: tables, figures and a page, from the run directories."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown

from casa.atari57 import read_published
from casa.experiments.figures import available
from casa.page import suite as page
from casa.run import durable
from casa.run.digest import now
from casa.suite import figures, formats, spec
from casa.suite.results import SCALES, Results, collect
from casa.suite.tables import Sheet, facts, sheets

FOLDER = "report"
SHORT = ("agent", "scale", "games", "runs", "mean", "median", "IQM", "IQM, over seeds", "optimality gap", "above 100%")
"""Columns of the summary that fit a terminal."""
LISTED = 6
"""Missing runs that are named on a terminal."""


def write_report(directory: Path, console: Console, published: Path | None = None) -> list[Path]:
    """Write DIR/report: suite.md, one .tex and .csv for each table, suite.html, and figures if matplotlib is there.

    `published`: a CSV file of other agents' scores, for a table at equal frames.
    """
    others = read_published(published) if published else []
    suite = spec.load(directory)
    results = collect(suite, directory)
    made, told = sheets(results, others), facts(results)
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{' and '.join(suite.recipes)} on {suite.name}"
    content = {"suite.md": formats.markdown(made, title, told), "suite.html": _page(results, title, made, told)}
    for sheet in made:
        content |= {f"{sheet.name}.tex": formats.latex(sheet), f"{sheet.name}.csv": formats.to_csv(sheet)}
    for name, text in content.items():
        durable.replace(folder / name, text.encode())
    written = [folder / name for name in content]
    if available():
        written += figures.draw(results, folder)
    _show(made, facts(results, LISTED), console)
    if not available():
        console.print("no figures: they need matplotlib; pip install 'casa-rl[report]'", highlight=False, markup=False)
    console.print(f"wrote {len(written)} files; open {folder / 'suite.html'}", highlight=False, soft_wrap=True)
    return written


def _page(results: Results, title: str, made: list[Sheet], told: list[str]) -> str:
    tables = [
        page.Table(sheet.title, [(c.title, c.kind, c.ours) for c in sheet.columns], sheet.rows, sheet.notes)
        for sheet in made
    ]
    profiles = []
    for scale in SCALES if any(results.games.values()) else ():
        profiles.append(page.Chart(scale, f"{scale}, 1 is 100%", figures.profiles(results, scale)))
    games = [
        page.Chart(results.games[env] or env, "agent steps", figures.curves(results, env))
        for env in results.suite.envs
    ]
    return page.suite_page(title, now(), told, tables, profiles, games)


def _show(made: list[Sheet], told: list[str], console: Console) -> None:
    """The first table, cut to the terminal, and what is missing."""
    if made:
        sheet = made[0]
        kept = [i for i, column in enumerate(sheet.columns) if sheet.name != "summary" or column.title in SHORT]
        shown = Shown(title=sheet.title)
        for i in kept:
            shown.add_column(sheet.columns[i].title, justify="left" if sheet.columns[i].kind == "text" else "right")
        for row in sheet.rows:
            shown.add_row(*(formats.text_of(row[i], sheet.columns[i]) for i in kept))
        console.print(shown)
    for fact in told:
        console.print(fact, highlight=False, markup=False, soft_wrap=True)
