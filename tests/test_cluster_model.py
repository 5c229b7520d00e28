"""The model of the Ray engine against closed forms, with one part at a time as the limit."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from cluster_model import Cluster, simulate

FAST = Cluster(rate=1000.0, envs=20, seq_len=40, batch=8, reuse=2.0, learner=1e-4, jitter=0.0)


def rate(workers=50, seconds=30.0, **changes):
    return simulate(replace(FAST, **changes), workers, seconds)


def test_workers_that_never_wait_have_their_own_rate():
    for workers in (1, 7, 50):
        found = rate(workers)
        assert found.steps_per_second == pytest.approx(1000 * workers, rel=0.01) and found.limit == "workers"


def test_a_second_call_hides_what_a_result_costs_until_it_takes_longer_than_playing():
    """One worker: slots / max(playing, link + latency both ways + receiving) with two calls to overlap them."""
    playing = 800 / 1000
    assert rate(1, latency=0.3, receive=1e-4).steps_per_second == pytest.approx(1000, rel=0.02)
    trip = 2 * 1.0 + 0.2  # there and back, and receiving
    slow = rate(1, 300.0, latency=1.0, message=0.2)
    assert slow.steps_per_second == pytest.approx(2 * 800 / (playing + trip), rel=0.02)


def test_a_saturated_learner_trains_on_batch_steps_per_learner_step():
    found = rate(learner=0.02)
    assert found.steps_per_second == pytest.approx(8 * 40 / 2 / 0.02, rel=0.01) and found.limit == "learner"


def test_a_saturated_link_passes_bandwidth_over_bytes():
    found = rate(step_bytes=7000.0, bandwidth=7e7)
    assert found.steps_per_second == pytest.approx(7e7 / 7000, rel=0.01) and found.limit == "link"


def test_a_saturated_receiver_costs_messages_and_steps_and_looks():
    """800 steps in each turn of one result: 800 / (message + 800 receive + workers look), if one result is ready."""
    found = rate(message=0.04, receive=5e-5)
    assert found.steps_per_second == pytest.approx(800 / (0.04 + 800 * 5e-5), rel=0.01) and found.limit == "receiver"


def test_weights_cost_the_receiver_time_for_each_worker_at_each_pull():
    """Busy share: steps/s (receive + send / steps of a worker's environments between two pulls)."""
    found = rate(10, 100.0, receive=2e-5, send=0.02, publish_every=1)
    assert found.busy["receiver"] == pytest.approx(10_000 * (2e-5 + 0.02 / (64 * 20)), rel=0.05)
    assert found.steps_per_second == pytest.approx(10_000, rel=0.01)


def test_lost_workers_play_the_share_of_the_time_that_they_live():
    found = rate(workers=20, lifetime=20.0, restart=10.0, seconds=300.0)
    lost = 800 / 1000 / 2 / 30  # and half a call at each loss
    assert found.steps_per_second == pytest.approx(20_000 * (20 / 30 - lost), rel=0.05) and found.losses > 100


def test_the_lag_of_workers_in_lockstep():
    """N results come at once, one learner step each: N/2 steps pass while playing, (N - 1)/2 while others train."""
    one = replace(FAST, batch=20, reuse=1.0, pull_every=1)
    for workers in (1, 10):
        assert simulate(one, workers).policy_lag == pytest.approx(workers - 0.5, rel=0.02)


def test_workers_that_share_cores_slow_each_other():
    assert rate(8, cores=9.0, worker_cores=2.0).steps_per_second == pytest.approx(8000 * 9 / 17, rel=0.02)
