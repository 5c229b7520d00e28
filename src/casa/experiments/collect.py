"""The numbers behind a study's figures: one row per measurement of each run, as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from casa.errors import UserError
from casa.experiments.studies import Planned, Study
from casa.run import durable
from casa.run.jsonl import read_jsonl
from casa.statistics import Array

NUMBERS = (
    "step",
    "frames",
    "seconds",
    "learner_steps",
    "episodes",
    "return",
    "chi",
    "cos_beta",
    "cos_v_pi",
    "cos_v_q",
    "conflict_q_pi",
    "conflict_v_pi",
    "conflict_v_q",
    "norm_ratio_q_pi",
    "norm_ratio_v_pi",
    "noise_scale_v",
    "noise_scale_q",
    "noise_scale_pi",
    "entropy",
    "entropy_q",
    "feature_rank",
    "dormant_units",
    "explained_variance",
)
"""Columns of metrics.jsonl that a study keeps."""


class Curve(NamedTuple):
    """One run: its place in the study, whether it reached all steps, and its columns, NaN where a value is missing."""

    version: str
    env: str
    seed: int
    finished: bool
    columns: dict[str, Array]

    @property
    def score(self) -> float:
        """Mean return of the last 100 episodes at the end."""
        known = self.columns["return"][~np.isnan(self.columns["return"])]
        return float(known[-1]) if len(known) else math.nan


def read_runs(runs: Iterable[Planned]) -> list[Curve]:
    """The logs of all runs that have any."""
    found = []
    for run in runs:
        file = run.path / "metrics.jsonl"
        rows = list(read_jsonl(file)) if file.exists() else []
        if rows:
            columns = {name: np.array([_number(row.get(name)) for row in rows]) for name in NUMBERS}
            finished = rows[-1]["step"] >= run.config.steps
            found.append(Curve(run.version, run.env, run.seed, finished, columns))
    return found


def write_csv(curves: Sequence[Curve], file: Path) -> None:
    """version, env, seed, finished and the columns, one line per row; an empty field where a value is missing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["version", "env", "seed", "finished", *NUMBERS])
    for curve in curves:
        for i in range(len(curve.columns["step"])):
            values = (curve.columns[name][i] for name in NUMBERS)
            numbers = ["" if math.isnan(x) else f"{x:.6g}" if abs(x) < 1e5 else f"{x:.0f}" for x in values]
            writer.writerow([curve.version, curve.env, curve.seed, int(curve.finished), *numbers])
    durable.replace(file, text.getvalue().encode())


def read_csv(file: Path) -> list[Curve]:
    """What `write_csv` wrote."""
    rows: dict[tuple[str, str, int, bool], list[list[float]]] = {}
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            for row in csv.DictReader(opened):
                key = row["version"], row["env"], int(row["seed"]), row["finished"] == "1"
                rows.setdefault(key, []).append([float(row[name] or "nan") for name in NUMBERS])
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    return [Curve(*key, dict(zip(NUMBERS, np.array(values).T, strict=True))) for key, values in rows.items()]


def in_order(curves: Iterable[Curve], study: Study) -> list[Curve]:
    """The curves that belong to the study, in its order of versions and environments."""
    versions, envs = list(study.versions), list(study.envs)
    mine = [curve for curve in curves if curve.version in versions and curve.env in envs]
    return sorted(mine, key=lambda curve: (envs.index(curve.env), versions.index(curve.version), curve.seed))


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
