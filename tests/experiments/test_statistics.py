"""Interquartile means and bootstrap intervals against their definitions."""

import math

import numpy as np
import pytest

from casa.experiments.statistics import correlation, iqm, stratified_bootstrap


def test_iqm_is_the_trimmed_mean():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for n in (1, 3, 4, 7, 25, 60):
        scores = rng.normal(size=n)
        assert iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25))
    assert iqm([[0, 1], [2, 100]]) == 1.5


def test_one_outlier_does_not_move_it():
    assert iqm([1.0] * 7 + [1e9]) == 1.0


def test_strata_are_resampled_by_themselves():
    """Two tasks whose runs agree exactly: the IQM cannot vary, although all scores together do."""
    found = stratified_bootstrap({"a": [0.0] * 5, "b": [1.0] * 5})
    assert found.low == found.high == found.estimate == 0.5
    mixed = stratified_bootstrap({"both": [0.0] * 5 + [1.0] * 5})
    assert mixed.high - mixed.low > 0.3


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for i in range(200):
        found = stratified_bootstrap({task: rng.normal(size=20) for task in "abc"}, resamples=300, seed=i)
        hits += found.low <= 0 <= found.high
    assert 0.88 < hits / 200 <= 1


def test_correlation():
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(correlation([1, 1, 1], [3, 2, 1])) and math.isnan(correlation([], []))
