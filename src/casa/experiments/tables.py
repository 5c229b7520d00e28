"""The table of a study: scores with interquartile means and intervals, and the conflict measures of each version."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from casa import atari57
from casa.envs.names import EnvId, display_name, resolve
from casa.errors import UserError
from casa.experiments.collect import Curve
from casa.experiments.studies import Study
from casa.run import durable
from casa.statistics import correlation, stratified_bootstrap

Row = dict[str, str]


def normalised(curves: Sequence[Curve]) -> tuple[str, dict[tuple[str, str, int], float]]:
    """(what was done, (version, env, seed) -> score).

    Human-normalised scores if all environments are games of Atari-57; otherwise 0 is the lowest and 1 the highest score
    of all runs in that environment.
    """
    scores = {(c.version, c.env, c.seed): c.score for c in curves if not math.isnan(c.score)}
    games = {env: game_of(env) for _, env, _ in scores}
    if scores and all(games.values()):
        return "human-normalised score", {k: atari57.hns(str(games[k[1]]), score) for k, score in scores.items()}
    found = {}
    for (version, env, seed), score in scores.items():
        here = [other for (_, at, _), other in scores.items() if at == env]
        low, high = min(here), max(here)
        found[version, env, seed] = (score - low) / (high - low) if high > low else 0.5
    return "score scaled to 0 (lowest run) .. 1 (highest run) in each environment", found


def game_of(env: str) -> str | None:
    """The game of Atari-57 that an environment's id names; None if it is something else."""
    try:
        found: EnvId = resolve(env)
    except UserError:
        return None
    name = display_name(found.name)
    return name if found.kind == "atari" and atari57.is_game(name) else None


def table(curves: Sequence[Curve], study: Study) -> tuple[str, list[Row]]:
    """(how scores are normalised, one row per version); only finished runs count, and their number is shown."""
    finished = [curve for curve in curves if curve.finished]
    how, scores = normalised(finished)
    rows = []
    for version in study.versions:
        mine = [curve for curve in finished if curve.version == version]
        by_env = {env: [s for (v, e, _), s in scores.items() if v == version and e == env] for env in study.envs}
        row: Row = {"version": version, "runs": f"{len(mine)} of {len(study.envs) * study.seeds}"}
        if any(by_env.values()):
            found = stratified_bootstrap(by_env)
            row["IQM"], row["95% interval"] = f"{found.estimate:.3f}", f"{found.low:.3f} to {found.high:.3f}"
        for env in study.envs:
            returns = [curve.score for curve in mine if curve.env == env and not math.isnan(curve.score)]
            row[env] = f"{np.mean(returns):.4g}" if returns else ""
        for name in ("chi", "cos_beta", "cos_v_pi", "cos_v_q", "conflict_q_pi"):
            row[name] = _mean([curve.columns[name] for curve in mine])
        for name in ("entropy", "entropy_q"):
            row[f"{name} at the end"] = _mean([curve.columns[name][-1:] for curve in mine])
        row["r(chi, cos_beta)"] = _correlation(mine)
        rows.append(row)
    return how, rows


def _correlation(curves: Sequence[Curve]) -> str:
    """r of χ and cos β over all measurements; empty if it is not defined."""
    chi, beta = (_joined(curves, name) for name in ("chi", "cos_beta"))
    known = ~np.isnan(chi) & ~np.isnan(beta)
    r = correlation(chi[known].tolist(), beta[known].tolist())
    return "" if math.isnan(r) else f"{r:.2f}"


def _joined(curves: Sequence[Curve], name: str) -> np.ndarray:
    return np.concatenate([curve.columns[name] for curve in curves] or [np.zeros(0)])


def _mean(values: Sequence[np.ndarray]) -> str:
    joined = np.concatenate(list(values) or [np.zeros(0)])
    joined = joined[~np.isnan(joined)]
    return f"{joined.mean():.3f}" if len(joined) else ""


def write_table(curves: Sequence[Curve], study: Study, stem: Path) -> str:
    """Write STEM-table.md and STEM-table.csv; returns the Markdown text."""
    how, rows = table(curves, study)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    finished = [curve for curve in curves if curve.finished]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row.get(name, "") for name in columns) + " |" for row in rows]
    lines += [
        "",
        f"IQM: interquartile mean over runs and environments of the {how}, with a 95% stratified bootstrap interval "
        "over seeds. Environments: mean return of the last 100 episodes. "
        "Conflict measures: means over all measurements.",
    ]
    if r := _correlation(finished):
        each = {env: _correlation([curve for curve in finished if curve.env == env]) for env in study.envs}
        told = ", ".join(f"{env} {here}" for env, here in each.items() if here)
        lines.append(f"Correlation of chi and cos_beta over the measurements of all versions: {r} ({told}).")
    text = "\n".join(lines) + "\n"
    durable.replace(stem.with_name(f"{stem.name}-table.md"), text.encode())
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    durable.replace(stem.with_name(f"{stem.name}-table.csv"), out.getvalue().encode())
    return text
