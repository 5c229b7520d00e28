"""The tables of a suite, as data: the paper's per-game tables with our columns, the summary, published scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from casa import atari57
from casa.atari57 import Published
from casa.suite.results import AGENTS, SCALES, SCORES, Results, SummaryRow, at_frames, summaries

Cell = str | float | None
"""None: missing, or not known."""


@dataclass(frozen=True)
class Column:
    """`kind`: text, score or percent (of a fraction)."""

    title: str
    kind: str = "score"
    ours: bool = False
    """An empty cell is then a missing run, not an unknown score."""


@dataclass(frozen=True)
class Sheet:
    """One table. `name`: of its files."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=list)


def sheets(results: Results, published: Sequence[Published] = ()) -> list[Sheet]:
    """All tables of a suite."""
    games = any(results.games.values())
    found = [_summary_sheet(results, summaries(results))] if games else []
    found += [_scale_sheet(results, scale) for scale in SCALES] if games else []
    if not all(results.games.values()):
        found.append(_returns(results))
    return found + ([_equal_frames(results, published)] if games and published else [])


def facts(results: Results, listed: int | None = None) -> list[str]:
    """What a reader must know before comparing: length, protocol, scores, table of random scores, what is missing.

    At most `listed` missing runs are named, for a terminal; None: all.
    """
    suite = results.suite
    frames = suite.steps * results.frames_per_step
    length = f"{suite.steps:,} agent steps" + (f", {frames:,} frames on Atari" if frames != suite.steps else "")
    settings = ", ".join(f"{name} {value}" for name, value in suite.settings.items()) or "defaults"
    asked = suite.evaluation
    whole = atari57.SETS.get(suite.name)
    count = f"{len(suite.envs)} of {len(whole)} games" if whole else f"{len(suite.envs)} environments"
    lines = [
        f"{suite.name}, {count}: {length} a run, seeds {', '.join(map(str, suite.seeds))}; settings: {settings}.",
        "training: mean return of the last 100 episodes of training. evaluation: mean return of "
        f"{asked.episodes} new episodes, {asked.policy} policy, {asked.checkpoint} checkpoint. Means over seeds.",
    ]
    for told in dict.fromkeys(told for each in results.protocols.values() for told in each):
        mine = [recipe for recipe, each in results.protocols.items() if told in each]
        whose = "" if len(mine) == len(results.protocols) else f" of {', '.join(mine)}"
        lines.append(f"Atari{whose}: {told}.")
    if any(results.games.values()):
        lines.append(f"HNS and SABER (capped at 200%) use the {atari57.RANDOM_TABLE}.")
    lines += _predictions(results)
    others = [env for env, game in results.games.items() if game is None]
    if others and len(others) < len(results.games):
        lines.append(f"Not in the summary, without reference scores: {', '.join(others)}.")
    for score in SCORES:
        if gone := results.missing(score):
            lines.append(f"Missing, {score}: {named(gone, listed)}.")
    return lines


def _predictions(results: Results) -> list[str]:
    """The median over all 57 games predicted from `atari57.ATARI5`, where a suite has those but not all."""
    played = {game for game in results.games.values() if game is not None}
    if len(played) == len(atari57.GAMES) or not played >= set(atari57.ATARI5):
        return []
    found = []
    for recipe in results.suite.recipes:
        for score in SCORES:
            scores: dict[str, list[float]] = {}
            for env, game in results.games.items():
                if game is not None and (values := results.of(recipe, env, score)):
                    scores.setdefault(game, []).extend(values)
            if scores.keys() >= atari57.ATARI5.keys():
                means = {game: float(np.mean(values)) for game, values in scores.items()}
                found.append(f"{recipe}, {score} {100 * atari57.predicted_median(means):.0f}%")
    text = "Median HNS over 57 games, predicted from five (Atari-5; rough, with the random scores named above)"
    return [f"{text}: {'; '.join(found)}."] if found else []


def named(runs: Sequence[str], listed: int | None = None) -> str:
    """`a; b; and 3 more, all in suite.md`: the first `listed` of `runs`; None: all."""
    more = len(runs) - len(runs[:listed])
    return "; ".join(runs[:listed]) + (f"; and {more} more, all in suite.md" if more else "")


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _count(results: Results, recipe: str, env: str) -> str:
    done = sum((recipe, env, seed) in results.finished for seed in results.suite.seeds)
    return f"{done} of {len(results.suite.seeds)}"


def _scale_sheet(results: Results, scale: str) -> Sheet:
    """The paper's table of one scale: per game, reference scores, its four agents, then ours."""
    normalise = SCALES[scale]
    top = ("human", "human") if scale == "HNS" else ("world record", "world_record")
    columns = [Column("game", "text"), Column("random"), Column(top[0])]
    for name in AGENTS:
        columns += [Column(name), Column(f"{name} {scale}", "percent")]
    for recipe in results.suite.recipes:
        for score in SCORES:
            columns += [Column(f"{recipe}, {score}", ours=True), Column(f"{recipe}, {score} {scale}", "percent", True)]
        columns.append(Column(f"{recipe} seeds", "text"))
    rows = []
    for env, game in results.games.items():
        if game is None:
            continue
        known = atari57.reference(game)
        row: list[Cell] = [game, known.random, getattr(known, top[1])]
        for name in AGENTS.values():
            value = getattr(known, name)
            row += [value, normalise(game, value)]
        for recipe in results.suite.recipes:
            for score in SCORES:
                values = results.of(recipe, env, score)
                row += [_mean(values), _mean([normalise(game, value) for value in values])]
            row.append(_count(results, recipe, env))
        rows.append(row)
    note = f"{', '.join(AGENTS)}: the paper's table, after 200M frames."
    return Sheet(scale.casefold(), f"{scale} by game", columns, rows, [note])


def _returns(results: Results) -> Sheet:
    """Mean returns in environments without reference scores."""
    columns = [Column("environment", "text")]
    for recipe in results.suite.recipes:
        columns += [Column(f"{recipe}, {score}", ours=True) for score in SCORES]
        columns.append(Column(f"{recipe} seeds", "text"))
    rows = []
    for env, game in results.games.items():
        if game is None:
            row: list[Cell] = [env]
            for recipe in results.suite.recipes:
                row += [_mean(results.of(recipe, env, score)) for score in SCORES]
                row.append(_count(results, recipe, env))
            rows.append(row)
    return Sheet("returns", "Mean return by environment", columns, rows)


def _summary_sheet(results: Results, found: Sequence[SummaryRow]) -> Sheet:
    metrics = ("mean", "median", "IQM", "optimality gap", "above 100%")
    columns = [Column("agent", "text"), Column("scale", "text"), Column("games", "text"), Column("runs", "text")]
    for metric in metrics:
        kind = "score" if metric == "above 100%" else "percent"
        columns.append(Column(metric, kind, ours=True))
        columns += [Column(f"{metric}, over {what}", "text") for what in ("seeds", "games")]
    rows = []
    for row in found:
        cells: list[Cell] = [row.name, row.scale, f"{row.games} of {row.of}", f"{row.runs} of {row.of_runs}"]
        for metric in metrics:
            if metric not in row.seeds:
                cells += [None, None, None]
                continue
            shown = "{:g} to {:g}".format if metric == "above 100%" else "{:.1%} to {:.1%}".format
            several = row.runs > row.games
            spans = (row.seeds[metric] if several else None, row.tasks[metric] if row.games > 1 else None)
            cells.append(row.seeds[metric].estimate)
            cells += ["" if span is None else shown(span.low, span.high) for span in spans]
        rows.append(cells)
    notes = [
        "above 100%: games above the human (HNS) or the world record (SABER). Intervals: 95%, stratified bootstrap, "
        "over seeds for these games, and over seeds and games.",
        "A row over fewer games than another is not comparable with it.",
        f"HNS and SABER use the {atari57.RANDOM_TABLE}.",
    ]
    return Sheet("summary", "Summary over games", columns, rows, notes)


def _equal_frames(results: Results, published: Sequence[Published]) -> Sheet:
    """Published scores after as many frames as ours, at every number of frames that the runs have reached."""
    reached = results.suite.steps * results.frames_per_step
    marks = sorted({row.frames for row in published if row.frames <= 1.01 * reached})
    protocols = {row.agent: row.protocol for row in published if row.frames in marks}
    columns = [Column("game", "text"), Column("frames", "text")]
    columns += [Column(f"{recipe}, training", ours=True) for recipe in results.suite.recipes]
    columns += [Column(agent) for agent in protocols]
    rows: list[list[Cell]] = []
    for env, game in results.games.items():
        for frames in marks if game is not None else ():
            known = {row.agent: row.score for row in published if (row.game, row.frames) == (game, frames)}
            ours = [_mean(at_frames(results, recipe, env, frames)) for recipe in results.suite.recipes]
            rows.append([str(game), f"{frames / 1e6:g}M", *ours, *(known.get(agent) for agent in protocols)])
    notes = ["Ours: training return at that point of the run. Other protocols than ours make scores incomparable:"]
    notes += [f"{agent}: {protocol}." for agent, protocol in protocols.items()]
    if not marks:
        least = min(row.frames for row in published)
        notes = [f"The published scores begin at {least:,} frames; these runs have {reached:,}."]
    return Sheet("equal-frames", "Published scores at equal frames", columns, rows, notes)
