"""Interquartile means and bootstrap intervals against their definitions."""

import math

import numpy as np
import pytest

from casa.statistics import METRICS, correlation, iqm, padded, profile, stratified_bootstrap


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


RAGGED = {"a": [0.2, 1.4], "b": [3.0], "c": [0.5, 0.7, 2.4], "d": []}


def test_aggregates_over_tasks_with_unequal_runs():
    scores = padded(RAGGED)
    means = [0.8, 3.0, 1.2]
    assert METRICS["mean"](scores) == pytest.approx(np.mean(means))
    assert METRICS["median"](scores) == pytest.approx(1.2)
    assert METRICS["IQM"](scores) == pytest.approx(np.mean([0.5, 0.7, 1.4, 2.4]))  # floor(6 / 4) cut at each end
    gaps = [(0.8 + 0) / 2, 0, (0.5 + 0.3 + 0) / 3]
    assert METRICS["optimality gap"](scores) == pytest.approx(np.mean(gaps))
    assert METRICS["above 100%"](scores) == 2


def test_a_resample_has_each_tasks_own_runs():
    """With one task the estimate is a plain bootstrap; a task's missing runs are never drawn."""
    found = stratified_bootstrap(RAGGED, METRICS["mean"])
    assert found.estimate == pytest.approx(5 / 3)
    lowest, highest = np.mean([0.2, 3.0, 0.5]), np.mean([1.4, 3.0, 2.4])
    assert lowest <= found.low < found.estimate < found.high <= highest
    wider = stratified_bootstrap(RAGGED, METRICS["mean"], resample_tasks=True)
    assert wider.low < found.low and wider.high > found.high
    certain = stratified_bootstrap({"a": [1.0], "b": [2.0]}, METRICS["mean"])
    assert certain.low == certain.high == 1.5


def test_a_profile_is_the_share_of_runs_above_each_threshold():
    thresholds = [-1.0, 0.5, 0.6, 1.4, 3.0]
    found = profile(RAGGED, thresholds)
    tasks = [scores for scores in RAGGED.values() if scores]
    naive = [np.mean([np.mean([score > t for score in scores]) for scores in tasks]) for t in thresholds]
    np.testing.assert_allclose(found.share, naive)
    assert (found.low <= found.share).all() and (found.share <= found.high).all()
    assert found.share[0] == 1 and found.share[-1] == 0
