"""Aggregates over tasks and runs, with stratified bootstrap intervals (Agarwal et al., 2021), in NumPy.

The definitions are rliable's. The package itself is not used: it needs arch, statsmodels, pandas and seaborn, for a few
functions of a few lines each.

Scores are arrays [..., tasks, runs], with NaN where a task has fewer runs than another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Metric = Callable[[Array], Array]
"""Scores [..., tasks, runs] -> aggregate [...]."""
RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate and the bounds of its 95% interval."""

    estimate: float
    low: float
    high: float


def padded(by_task: Mapping[str, Sequence[float]]) -> Array:
    """Scores [tasks, runs], NaN after the last run of a task; tasks without runs are left out."""
    tasks = [np.asarray(scores, np.float64) for scores in by_task.values() if len(scores)]
    found = np.full((len(tasks), max(map(len, tasks), default=0)), np.nan)
    for row, scores in zip(found, tasks, strict=True):
        row[: len(scores)] = scores
    return found


def iqm(scores: npt.ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all scores, with floor(n / 4) cut off at each end."""
    return float(pooled_iqm(np.asarray(scores, np.float64).reshape(1, -1)))


def pooled_iqm(scores: Array) -> Array:
    """`iqm` of all runs of all tasks together."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)  # NaN comes last
    count = (~np.isnan(ordered)).sum(-1, keepdims=True)
    cut, place = count // 4, np.arange(ordered.shape[-1])
    middle = (place >= cut) & (place < count - cut)
    return np.where(middle, ordered, 0.0).sum(-1) / middle.sum(-1)


def mean(scores: Array) -> Array:
    """Mean over tasks of each task's mean."""
    return np.nanmean(scores, -1).mean(-1)


def median(scores: Array) -> Array:
    """Median over tasks of each task's mean."""
    return np.median(np.nanmean(scores, -1), -1)


def optimality_gap(scores: Array) -> Array:
    """Mean over tasks and runs of 1 - min(score, 1): how much is missing to 1.0."""
    return mean(1 - np.minimum(scores, 1))


def tasks_above(scores: Array) -> Array:
    """Number of tasks whose mean is above 1.0."""
    return (np.nanmean(scores, -1) > 1).sum(-1).astype(np.float64)


METRICS: dict[str, Metric] = {
    "mean": mean,
    "median": median,
    "IQM": pooled_iqm,
    "optimality gap": optimality_gap,
    "above 100%": tasks_above,
}


def stratified_bootstrap(
    by_task: Mapping[str, Sequence[float]],
    metric: Metric = pooled_iqm,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
    resample_tasks: bool = False,
) -> Interval:
    """An aggregate over all runs of all tasks, with a percentile interval.

    Each resample draws, for every task by itself, as many runs as that task has, with replacement: the interval is over
    seeds, for these tasks. With `resample_tasks` the tasks are drawn with replacement first: over tasks like these.
    """
    scores = padded(by_task)
    drawn = metric(_resample(scores, resamples, np.random.default_rng(seed), resample_tasks))
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(metric(scores)), float(low), float(high))


def _resample(scores: Array, resamples: int, rng: np.random.Generator, resample_tasks: bool) -> Array:
    """[resamples, tasks, runs]; a task's draws stand first, NaN after them."""
    count, most = scores.shape
    tasks = np.broadcast_to(np.arange(count), (resamples, count))
    if resample_tasks:
        tasks = rng.integers(count, size=(resamples, count))
    runs = (~np.isnan(scores)).sum(1)[tasks][..., None]
    draws = rng.integers(runs, size=(resamples, count, most))
    return np.where(np.arange(most) < runs, scores[tasks[..., None], draws], np.nan)


class Profile(NamedTuple):
    """Values at each threshold, with the bounds of their 95% intervals over seeds."""

    share: Array
    low: Array
    high: Array


def profile(
    by_task: Mapping[str, Sequence[float]], thresholds: npt.ArrayLike, resamples: int = RESAMPLES, seed: int = 0
) -> Profile:
    """Performance profile: at each threshold τ, the mean over tasks of the share of runs with a score above τ."""
    scores = padded(by_task)
    drawn = _resample(scores, resamples, np.random.default_rng(seed), False)
    found = []
    for threshold in np.asarray(thresholds, np.float64):
        low, high = np.quantile(_share_above(drawn, threshold), [0.025, 0.975])
        found.append((float(_share_above(scores, threshold)), float(low), float(high)))
    return Profile(*np.array(found).reshape(-1, 3).T)


def _share_above(scores: Array, threshold: float) -> Array:
    return mean(np.where(np.isnan(scores), np.nan, scores > threshold))


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's r; NaN if one of the two is constant."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 3 or a.std() < 1e-6 or b.std() < 1e-6:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
