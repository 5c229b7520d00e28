"""Interquartile means with stratified bootstrap intervals (Agarwal et al., 2021), in NumPy.

The definitions are rliable's. The package itself is not used: it needs arch, statsmodels, pandas and seaborn, for two
functions of a few lines each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate and the bounds of its 95% interval."""

    estimate: float
    low: float
    high: float


def iqm(scores: npt.ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all scores, with floor(n / 4) cut off at each end."""
    ordered = np.sort(np.asarray(scores, np.float64), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def stratified_bootstrap(
    by_task: Mapping[str, Sequence[float]], resamples: int = RESAMPLES, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """IQM over all runs of all tasks, with a percentile interval.

    Each resample draws, for every task by itself, as many runs as that task has, with replacement.
    """
    rng = np.random.default_rng(seed)
    tasks = [np.asarray(scores, np.float64) for scores in by_task.values() if len(scores)]
    drawn = np.concatenate([task[rng.integers(len(task), size=(resamples, len(task)))] for task in tasks], 1)
    ordered = np.sort(drawn, 1)
    cut = ordered.shape[1] // 4
    means = ordered[:, cut : ordered.shape[1] - cut].mean(1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(iqm(np.concatenate(tasks)), float(low), float(high))


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's r; NaN if one of the two is constant."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 3 or a.std() < 1e-6 or b.std() < 1e-6:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
