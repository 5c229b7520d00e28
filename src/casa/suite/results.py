"""What the runs of a suite have found: both scores of each run, by recipe and environment, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np

from casa import atari57
from casa.config.env import EnvConfig
from casa.config.safe_yaml import load_plain
from casa.experiments.collect import Curve, read_runs
from casa.experiments.studies import Planned
from casa.experiments.tables import game_of
from casa.run.rundir import read_config
from casa.statistics import METRICS, Interval, stratified_bootstrap
from casa.suite.schedule import evaluation_of
from casa.suite.spec import Suite

SCORES = ("training", "evaluation")
"""training: mean return of the last 100 training episodes. evaluation: mean return of `casa eval`. Never mixed."""
SCALES: dict[str, Callable[[str, float], float]] = {"HNS": atari57.hns, "SABER": atari57.saber}
AGENTS = {"Rainbow": "rainbow", "IMPALA": "impala", "LASER": "laser", "CASA, paper": "casa"}
"""Columns of the paper's tables -> fields of `atari57.Reference`, after 200M frames."""


class Finished(NamedTuple):
    """Both scores of a run that took all its steps; NaN where one is missing."""

    training: float
    evaluation: float


@dataclass(frozen=True)
class Results:
    """Everything that is known about a suite."""

    suite: Suite
    finished: Mapping[tuple[str, str, int], Finished]
    """(recipe, environment, seed) -> scores; no entry for a run that has not finished."""
    curves: Sequence[Curve]
    """Of all runs that have begun."""
    games: Mapping[str, str | None]
    """Environment -> its game of Atari-57, if it is one."""
    frames_per_step: int
    protocols: Mapping[str, Sequence[str]]
    """Recipe -> what its Atari games are like (`protocol`): more than one if its runs differ."""

    def of(self, recipe: str, env: str, score: str) -> list[float]:
        """The scores of the seeds that have one."""
        found = (self.finished.get((recipe, env, seed)) for seed in self.suite.seeds)
        values = [getattr(each, score) for each in found if each is not None]
        return [value for value in values if not math.isnan(value)]

    def missing(self, score: str) -> list[str]:
        """`casa ALE/Pong-v5 seeds 0, 1`, for each recipe and environment that lacks seeds."""
        gone = []
        for recipe in self.suite.recipes:
            for env in self.suite.envs:
                found = {seed: self.finished.get((recipe, env, seed)) for seed in self.suite.seeds}
                seeds = [str(s) for s, each in found.items() if each is None or math.isnan(getattr(each, score))]
                if seeds:
                    gone.append(f"{recipe} {env} seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}")
        return gone

    def normalised(self, recipe: str, score: str, scale: str) -> dict[str, list[float]]:
        """Game -> normalised score of each seed, for the games that have any."""
        found = {}
        for env, game in self.games.items():
            if game is not None and (values := self.of(recipe, env, score)):
                found[game] = [SCALES[scale](game, value) for value in values]
        return found


class SummaryRow(NamedTuple):
    """Aggregates over games of one recipe or published agent, on one scale."""

    name: str
    scale: str
    games: int
    of: int
    runs: int
    of_runs: int
    seeds: dict[str, Interval]
    """Metric -> estimate and interval over seeds, for these games."""
    tasks: dict[str, Interval]
    """The same with games drawn too: over games like these."""


def collect(suite: Suite, directory: Path) -> Results:
    """Read the run directories."""
    planned = suite.planned(directory)
    curves = read_runs(planned)
    places = {(run.version, run.env, run.seed): run for run in planned}
    finished = {}
    for curve in curves:
        if curve.finished:
            key = curve.version, curve.env, curve.seed
            finished[key] = Finished(curve.score, _evaluation(places[key], suite))
    games = {env: game_of(env) for env in suite.envs}
    skip = planned[0].config.env.frame_skip
    protocols: dict[str, list[str]] = {}
    for run in planned:
        if games[run.env] and (told := protocol(_environment(run))) not in protocols.setdefault(run.version, []):
            protocols[run.version].append(told)
    return Results(suite, finished, curves, games, skip if any(games.values()) else 1, protocols)


def _environment(run: Planned) -> EnvConfig:
    """That of the run, if it has begun: presets change from version to version. Nothing that it names is imported."""
    file = run.path / "config.yaml"
    try:
        saved = load_plain(read_config(file)) if file.exists() else None
    except ValueError:  # damaged: `casa resume` completes it
        saved = None
    if not isinstance(saved, dict) or not isinstance(env := saved.get("env"), dict):
        return run.config.env
    return EnvConfig(**{field.name: env[field.name] for field in fields(EnvConfig) if field.name in env})


def protocol(env: EnvConfig) -> str:
    """What scores depend on beside the agent: actions, sticky actions, no-ops, lives, frame cap."""
    actions = "all 18 actions" if env.full_action_space else "each game's own actions"
    sticky = f"sticky actions {env.sticky:g}" if env.sticky else "no sticky actions"
    no_ops = f"0 to {env.noop_max} no-ops" if env.noop_max else "no no-ops"
    lives = ", a lost life is terminal to the learner" if env.terminal_lives else ""
    ends = ", a lost life ends the episode" if env.episodic_life else ""
    return f"{actions}, {sticky}, {no_ops}{lives}{ends}, at most {env.max_frames:,} frames"


def _evaluation(run: Planned, suite: Suite) -> float:
    found = evaluation_of(run, suite.evaluation)
    return math.nan if found is None else float(found["modes"][suite.evaluation.policy]["mean"])


def summaries(results: Results) -> list[SummaryRow]:
    """The paper's agents on the suite's games, then each recipe by each of its two scores; on both scales."""
    games = [game for game in results.games.values() if game is not None]
    rows = []
    for scale, normalise in SCALES.items() if games else ():
        for name, field in AGENTS.items():
            scores = {game: [normalise(game, getattr(atari57.reference(game), field))] for game in games}
            rows.append(_summary(f"{name}, 200M frames", scale, scores, len(games), len(games)))
        for recipe in results.suite.recipes:
            for score in SCORES:
                scores = results.normalised(recipe, score, scale)
                runs = len(games) * len(results.suite.seeds)
                rows.append(_summary(f"{recipe}, {score}", scale, scores, len(games), runs))
    return rows


def _summary(name: str, scale: str, scores: Mapping[str, Sequence[float]], games: int, runs: int) -> SummaryRow:
    found: list[dict[str, Interval]] = [{}, {}]
    for metric, function in METRICS.items() if scores else ():
        for into, tasks in zip(found, (False, True), strict=True):
            into[metric] = stratified_bootstrap(scores, function, resample_tasks=tasks)
    return SummaryRow(name, scale, len(scores), games, sum(map(len, scores.values())), runs, *found)


def at_frames(results: Results, recipe: str, env: str, frames: int) -> list[float]:
    """Training return of each seed after `frames` frames, read off its curve; nothing for a seed that has fewer."""
    found = []
    for curve in results.curves:
        if (curve.version, curve.env) == (recipe, env):
            known = ~np.isnan(curve.columns["return"])
            x, y = curve.columns["step"][known] * results.frames_per_step, curve.columns["return"][known]
            if len(x) and x[-1] >= 0.99 * frames:
                found.append(float(np.interp(frames, x, y)))
    return found
