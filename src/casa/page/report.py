"""The report of one or more runs: what stands in it, as plain data, and the page around that data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from casa import atari57
from casa.page.curves import AXES, Column, bucket_size, columns, rounded, thin
from casa.page.document import data_uri, document
from casa.page.metrics import sections

POINTS = 800
"""Points of a curve, at most."""
CELLS = 450_000
"""Numbers in all curves together, at most: about 3 MB. With more columns or runs, curves get fewer points."""
VIDEO_BYTES = 1_100_000
"""Videos that a report holds, together; of the others it names the files."""
UNCOMPARED = ("seed", "run_dir")


@dataclass(frozen=True)
class RunData:
    """What a report needs of a run. `config`: dotted field -> value; `rows`: metrics; `evaluations`: of
    `casa eval`, one for each checkpoint and policy: step, mode, episodes, mean, interval, hns, saber.

    `videos`: name -> content of an MP4 file, or None if it is to be named only.
    """

    name: str
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]] = ()
    videos: Mapping[str, bytes | None] = field(default_factory=dict)


def report_page(runs: Sequence[RunData], made: str, live: bool = False) -> str:
    """The report as one HTML file; `live`: it asks the server that it comes from for data.json every two seconds."""
    data = report_data(runs, made)
    return document(data["title"], ("base.js", "chart.js", "report.js"), {**data, "live": live}, "report.html", live)


def report_data(runs: Sequence[RunData], made: str) -> dict[str, Any]:
    """What the page shows, ready for JSON."""
    groups = _groups(runs)
    labels = _labels(groups)
    curves = [columns(run.rows) for run in runs]
    points = min(POINTS, max(CELLS // max(sum(map(len, curves)), 1), 40))
    by_run = {id(run): found for run, found in zip(runs, curves, strict=True)}
    names = dict.fromkeys(name for found in curves for name in found)
    return {
        "title": labels[0] if len(groups) == 1 else f"{len(runs)} runs",
        "made": made,
        "groups": [
            {
                "name": label,
                "env": _text(group[0].config.get("env.id", "")),
                "scores": _scores(group, [by_run[id(run)] for run in group]),
                "config": {name: _text(value) for name, value in group[0].config.items()},
                "runs": [
                    {"name": run.name, "seed": _text(run.config.get("seed")), **_curves(run, by_run[id(run)], points)}
                    for run in group
                ],
            }
            for label, group in zip(labels, groups, strict=True)
        ],
        "references": _references(runs),
        "sections": sections(names),
        "videos": _videos(runs),
    }


def _groups(runs: Sequence[RunData]) -> list[list[RunData]]:
    """Runs whose configurations differ in the seed alone stand together."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        compared = sorted((name, _text(value)) for name, value in run.config.items() if name not in UNCOMPARED)
        groups.setdefault(repr(compared) if compared else run.name, []).append(run)
    return list(groups.values())


def _labels(groups: Sequence[Sequence[RunData]]) -> list[str]:
    """A short name of each group: recipe and environment, then the fields in which namesakes differ."""
    short = [_title(group[0]) for group in groups]
    labels = []
    for name, group in zip(short, groups, strict=True):
        namesakes = [other for other, theirs in zip(groups, short, strict=True) if theirs == name]
        different = [row["field"] for row in _differences(namesakes)]
        if 0 < len(different) <= 2:
            values = (f"{field.rpartition('.')[2]} {_text(group[0].config.get(field))}" for field in different)
            name = f"{name}, {', '.join(values)}"
        elif len(namesakes) > 1:
            name = f"{name} ({group[0].name})"
        labels.append(name)
    return labels


def _title(run: RunData) -> str:
    config = run.config
    return f"{config['recipe']} on {config['env.id']}" if "recipe" in config and "env.id" in config else run.name


def _differences(groups: Sequence[Sequence[RunData]]) -> list[dict[str, Any]]:
    """The fields that are not the same in all groups, each with its values."""
    configs = [group[0].config for group in groups]
    names = dict.fromkeys(name for config in configs for name in config if name not in UNCOMPARED)
    rows = [(name, [_text(config.get(name)) for config in configs]) for name in names]
    return [{"field": name, "values": values} for name, values in rows if len(set(values)) > 1]


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _curves(run: RunData, found: dict[str, Column], points: int) -> dict[str, Any]:
    size = bucket_size(len(run.rows), points)
    stages = [str(row.get("bottleneck") or "") for row in run.rows[::size]]
    return {
        "x": {name: rounded(thin(found[name], size, axis=True), 9) for name in AXES if name in found},
        "y": {name: rounded(thin(column, size)) for name, column in found.items() if name not in AXES},
        "stages": stages if any(stages) else [],
    }


def _scores(group: Sequence[RunData], found: Sequence[dict[str, Column]]) -> dict[str, Any]:
    """Of each run in a group: the last return, the best one, a game's normalized scores; and what `casa eval` found."""

    def each(name: str, pick: Callable[[Column], float]) -> list[float | None]:
        present = (column[~np.isnan(column)] for column in (columns.get(name, np.zeros(0)) for columns in found))
        return [float(pick(column)) if len(column) else None for column in present]

    def last(name: str) -> list[float | None]:
        return each(name, lambda column: column[-1])

    game, final = _game(group[0]), last("return")
    normal = {} if game is None else {"hns": atari57.hns, "saber": atari57.saber}
    return {
        "return": final,
        "best": each("return", np.max),
        **{name: [None if x is None else score(str(game), x) for x in final] for name, score in normal.items()},
        **{name: last(name) for name in AXES},
        "evaluations": [{"run": run.name, **row} for run in group for row in run.evaluations],
    }


def _game(run: RunData) -> str | None:
    """The Atari game of a run; its rows have an HNS then, whatever the environment is called."""
    name = str(run.config.get("env.id", ""))
    return name if atari57.is_game(name) and any("hns" in row for row in run.rows) else None


def _references(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Known scores of the games: random play, human, the paper's CASA, world record."""
    games = dict.fromkeys(atari57.reference(game).game for run in runs if (game := _game(run)) is not None)
    rows = []
    for game in games:
        known = atari57.reference(game)
        named = {"random play": known.random, "human": known.human, "world record": known.world_record}
        named["CASA, paper, 200M frames"] = known.casa
        for name, score in named.items():
            normal = {"hns": atari57.hns(game, score), "saber": atari57.saber(game, score)}
            rows.append({"name": f"{name}, {game}", "score": score, **normal})
    return rows


def _videos(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Videos of the runs, the newest of each run first; the data of those that fit within VIDEO_BYTES."""
    left, shown = VIDEO_BYTES, []
    for run in runs:
        for name, content in run.videos.items():
            address = None
            if content is not None and len(content) <= left:
                left -= len(content)
                address = data_uri("video/mp4", content)
            shown.append({"run": run.name, "name": name, "data": address})
    return shown
