"""The figures of a suite: one learning curve a game, and performance profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from casa import atari57
from casa.experiments import figures
from casa.statistics import Array, profile
from casa.suite.results import AGENTS, SCALES, SCORES, Results

ACROSS = 6
"""Games in a row of the figure of curves."""
THRESHOLDS = {"HNS": np.linspace(0, 8, 81), "SABER": np.linspace(0, 2, 81)}


class Line(NamedTuple):
    """A curve with the bounds of its band."""

    name: str
    x: Array
    y: Array
    low: Array
    high: Array


def curves(results: Results, env: str) -> list[Line]:
    """Training return of each recipe over agent steps: mean over seeds, from the lowest to the highest."""
    lines = []
    for recipe in results.suite.recipes:
        mine = [curve for curve in results.curves if (curve.version, curve.env) == (recipe, env)]
        found = figures.grid(mine, "return")
        if found is not None:
            steps, values = found
            name = f"{recipe}, {len(values)} of {len(results.suite.seeds)} seeds"
            lines.append(Line(name, steps, values.mean(0), values.min(0), values.max(0)))
    return lines


def profiles(results: Results, scale: str) -> list[Line]:
    """Share of runs above each normalised score: each recipe by each of its two scores, then the paper's agents."""
    games = [game for game in results.games.values() if game is not None]
    thresholds, lines = THRESHOLDS[scale], []
    for recipe in results.suite.recipes:
        for score in SCORES:
            scores = results.normalised(recipe, score, scale)
            if scores:
                name = f"{recipe}, {score}, {len(scores)} of {len(games)} games"
                lines.append(Line(name, thresholds, *profile(scores, thresholds)))
    for name, field in AGENTS.items() if games else ():
        known = {game: [SCALES[scale](game, getattr(atari57.reference(game), field))] for game in games}
        found = profile(known, thresholds)
        lines.append(Line(f"{name}, 200M frames", thresholds, found.share, found.share, found.share))
    return lines


def draw(results: Results, folder: Path) -> list[Path]:
    """Write curves.* and, for Atari, profiles.* as PNG, PDF and SVG."""
    written = figures.write(folder / "curves", lambda pyplot: _curves(pyplot, results))
    if any(results.games.values()):
        written += figures.write(folder / "profiles", lambda pyplot: _profiles(pyplot, results))
    return written


def _curves(pyplot: Any, results: Results) -> Any:
    envs = results.suite.envs
    across = min(len(envs), ACROSS)
    down = -(-len(envs) // across)
    size = (2.6 * across, 2.0 * down)
    figure, axes = pyplot.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for axis, env in zip(axes.flat, envs, strict=False):
        _plot(axis, curves(results, env), scale=1e-6)
        axis.set_title(results.games[env] or env)
        if not axis.lines:
            axis.text(0.5, 0.5, "missing", ha="center", va="center", transform=axis.transAxes)
    for axis in axes.flat[len(envs) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("million agent steps")
    axes[0][0].set_ylabel("return")
    if len(results.suite.recipes) > 1:
        axes[0][0].legend(frameon=False, fontsize=6)
    return figure


def _profiles(pyplot: Any, results: Results) -> Any:
    figure, axes = pyplot.subplots(1, len(SCALES), figsize=(9, 3.6), layout="constrained")
    for axis, scale in zip(axes, SCALES, strict=True):
        _plot(axis, profiles(results, scale))
        axis.set(title=f"{atari57.RANDOM_TABLE}", xlabel=f"{scale} > τ", ylabel="share of runs", ylim=(0, 1))
        axis.title.set_fontsize(7)
    axes[0].legend(frameon=False, fontsize=6)
    return figure


def _plot(axis: Any, lines: list[Line], scale: float = 1.0) -> None:
    for line, colour in zip(lines, figures.COLOURS * 2, strict=False):
        axis.plot(line.x * scale, line.y, color=colour, label=line.name, linewidth=1.2)
        axis.fill_between(line.x * scale, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
