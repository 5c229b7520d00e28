"""The benchmark measures what it says, and its numbers fit together."""

import json
import math
import time
from statistics import median

import numpy as np
import pytest
import torch

from casa.bench import measure as bench
from casa.bench.profile import COLUMNS, timeline
from casa.bench.replay import replay_cost
from casa.bench.soak import fit, slope, soak
from casa.bench.stages import COHORTS, Alone, Emulation, EndToEnd, endless
from casa.bench.view import sentence
from casa.cli import main
from casa.config.load import make_config
from casa.envs import make_env
from casa.runtime.stopwatch import Span

TINY = {"preset": "laptop", "env.num_envs": 4, "data.seq_len": 5, "data.batch": 4, "net.hidden": 32}


@pytest.fixture(autouse=True)
def _loops_of_one_thread(monkeypatch):
    """Threads that wait for each other make a step of a tiny network slow where the machine is busy."""
    monkeypatch.setattr("casa.runtime.threads.THREADS", 1)


def config(recipe="ppo-casa", env="CartPole-v1", **more):
    return make_config({"recipe": recipe, "env": env, "data.rollout": 0, **TINY, **more})


class SlowEnv:
    """An environment whose step takes a known time at least, and counts its steps."""

    def __init__(self, env, seconds):
        self.env, self.seconds, self.spec, self.steps = env, seconds, env.spec, 0

    def __getattr__(self, name):
        return getattr(self.env, name)

    def recv(self):
        time.sleep(self.seconds)
        self.steps += self.spec.num_envs
        return self.env.recv()


@pytest.mark.parametrize(("recipe", "env"), [("ppo-casa", "CartPole-v1"), ("r2d2", "Breakout")])
def test_the_numbers_fit_together(recipe, env):
    small = {"data.replay_frames": 2000, "data.min_fill": 100, "env.group_size": 2} if recipe == "r2d2" else {}
    found = bench.measure(config(recipe, env, **small), seconds=0.2, rounds=2, replay_frames=16_000)
    stages, loops = found["stages"], found["end_to_end"]
    assert list(stages) == ["emulation", "inference", "writing", "learner"]
    assert set(loops) == {"sync", "async"}
    for rate in [*stages.values(), *loops.values()]:
        assert len(rate["rounds"]) == 2 and min(rate["rounds"]) > 0
        assert rate["steps_per_second"] == median(rate["rounds"])
    for loop in loops.values():
        ratios = [a / b for a, b in zip(loop["rounds"], stages["emulation"]["rounds"], strict=True)]
        assert loop["ratio_to_emulation"] == pytest.approx(median(ratios))
        assert loop["bottleneck"] in ("environment", "inference", "learner")
    assert found["ratio"] == loops[found["best_mode"]]["ratio_to_emulation"]
    reuse = found["config"]["data"]["reuse"]
    assert stages["learner"]["trained_frames_per_second"] == pytest.approx(
        reuse * stages["learner"]["steps_per_second"]
    )
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["memory"]["ring_bytes"] > 0 and found["memory"]["rss_bytes"] > 50e6
    assert 0 < found["prioritized"]["draw_update_ms"] < 100
    assert found["prioritized"]["sample_update_ms"] > 0
    assert found["limit"] in sentence(found)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("recipe", ["ppo", "r2d2"])
def test_rates_are_environment_steps_by_the_clock(recipe, mode):
    """With a step that sleeps 20 ms, 4 environments cannot exceed 200 steps/s, alone or together, at any reuse."""
    made = []

    def slow(env_config, count, seed):
        made.append(SlowEnv(make_env(env_config, count, seed), 0.02))
        return made[-1]

    loop = EndToEnd(config(recipe, **{"data.reuse": 3}), mode, slow)
    try:
        loop.warm_up(0.0)
        assert loop.system.learner.steps >= 2
        before, began = sum(env.steps for env in made), time.perf_counter()
        rate = loop.measure(1.0)
        counted = (sum(env.steps for env in made) - before) / (time.perf_counter() - began)
        assert rate == pytest.approx(counted, rel=0.4)
        assert rate < 220  # the sleep, and a tenth for windows that begin or end in a burst
        running = [actor.running for actor in loop.system.actors]
        assert 50 < Emulation(loop.system.actors).measure(0.2) < 220
        assert [actor.running for actor in loop.system.actors] == running
        # The loop goes on where it was held; a short window is stretched, to have whole bursts in it, but not for ever.
        # 0.2 seconds hold two sequences of each environment, and a window begins with the end of another.
        data, learner, cohorts = loop.system.config.data, loop.system.learner, []
        for seconds in (0.2, 0.01):
            before = learner.steps
            assert loop.measure(seconds) > 0
            cohorts.append((learner.steps - before) * data.batch / (4 * data.reuse))
        assert cohorts[0] >= COHORTS > cohorts[1]
    finally:
        loop.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Breakout"])
def test_random_play_shows_every_environment(env, mode):
    """One group, two groups, and batches of those that are ready first: each environment's newest observation."""
    loop = EndToEnd(config(env=env), mode, make_env)
    try:
        loop.warm_up(0.0)
        actors = loop.system.actors
        groups = {"sync": [4], "async": [2, 2] if env == "CartPole-v1" else [2]}
        assert [actor.group_size for actor in actors] == groups[mode]
        newest = {}

        def remembered(actor, recv):
            def wrapped():
                step = recv()
                newest.update(zip(actor.columns[actor.env_ids()].tolist(), step.obs.copy(), strict=True))
                return step

            return wrapped

        for actor in actors:
            actor.env.recv = remembered(actor, actor.env.recv)
        obs = Emulation(actors).play(40)
        assert np.array_equal(obs, np.stack([newest[i] for i in range(4)]))
        assert len(np.unique(obs.reshape(4, -1), axis=0)) == 4
    finally:
        loop.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_nothing_moves_between_windows(mode):
    # A step of 10 ms: the learner keeps up, so nothing but the pause holds the actor back.
    loop = EndToEnd(config(), mode, lambda *args: SlowEnv(make_env(*args), 0.01))
    try:
        loop.warm_up(0.0)
        loop.measure(0.1)
        steps, learned = loop.system.steps, loop.system.learner.steps
        time.sleep(0.2)
        assert (loop.system.steps, loop.system.learner.steps) == (steps, learned)
        assert loop.measure(0.1) > 0
        assert loop.system.steps > steps
    finally:
        loop.close()


@pytest.mark.parametrize("recipe", ["ppo", "r2d2-casa", "impala"])
def test_the_learner_alone_trains_on_a_full_ring_for_ever(recipe):
    tiny = config(recipe, **({"data.replay_frames": 200, "data.min_fill": 100} if recipe == "r2d2-casa" else {}))
    env = make_env(tiny.env, 4, 0)
    alone = Alone(tiny, env.spec, env.reset(0))
    env.close()
    ring = alone.system.ring
    assert ring.written.min() > 0.5 * ring.shape.capacity
    before = [p.clone() for p in alone.system.network.parameters()]
    for _ in range(60):  # more than the sampler holds
        assert alone.learn() == 4 * 5
    assert any(not torch.equal(a, b) for a, b in zip(before, alone.system.network.parameters(), strict=True))
    alone.write(0.05)
    assert np.array_equal(ring.written, np.full(4, ring.written[0]))
    alone.learn()


def test_endless_changes_length_and_first_fill_only():
    tiny = config("r2d2", **{"data.min_fill": 5000})
    changed = endless(tiny)
    assert changed.data.min_fill == 2 * 4 * 5
    assert changed.steps > tiny.steps
    assert endless(config("r2d2", **{"data.min_fill": 7})).data.min_fill == 7
    assert changed.agent == tiny.agent and changed.net == tiny.net and changed.env == tiny.env


def test_ideal_is_the_harmonic_sum_and_on_a_gpu_the_slower_side():
    rates = {"emulation": 4000.0, "inference": 8000.0, "writing": 16000.0, "learner": 2000.0}
    rest = 1 / (1 / 8000 + 1 / 16000 + 1 / 2000)
    cpu, cuda = {"device": "cpu", "cores": 2, "torch_threads": 2}, {"device": "cuda"}
    assert bench.ideal(rates, cpu) == pytest.approx(1 / (1 / 4000 + 1 / rest))
    assert bench.ideal(rates, {**cpu, "torch_threads": 1}) == pytest.approx(1 / (1 / 4000 + 0.5 / rest))
    assert bench.ideal(rates, cuda) == pytest.approx(rest)
    assert bench.ideal({**rates, "emulation": 500.0}, cuda) == 500


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_mode_and_a_file(mode, tmp_path, capsys):
    file = tmp_path / "deep" / "bench.json"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    given = f"--recipe ppo --env CartPole-v1 --mode {mode} --seconds 0.1 --rounds 1 --json {file} --data.reuse 3"
    status = main(["bench", "--profile", *given.split(), *flags])
    out = capsys.readouterr().out
    assert status == 0, out
    found = json.loads(file.read_text())
    assert list(found["end_to_end"]) == [mode]
    assert found["config"]["data"]["reuse"] == 3 and found["machine"]["cores"] >= 1
    assert "limits" in out and "round 1 of 1: learner" in out and str(file) in out.replace("\n", "")
    work = {row["what"]: row for row in found["profile"]["timeline"]["rows"]}
    assert {"learn", "infer and send", "wait for environments", "write to the ring"} <= work.keys()
    assert all(0 <= x <= 1 for row in work.values() for x in [row["share"], *row["busy"]])
    assert sum(kernel["share"] for kernel in found["profile"]["kernels"]) <= 1 + 1e-6
    assert "by kernel" in out and "aten::" in out


def test_a_time_line_shows_when_and_how_long():
    """Two spans of a quarter each, at the beginning and in the third quarter of a window of four seconds."""
    spans = [Span("work", 0.0, 1.0), Span("work", 2.0, 3.0), Span("rest", 1.0, 2.0), Span("rest", 3.0, 4.0)]
    found = timeline({"one": spans})
    work, rest = found["rows"]
    assert found["milliseconds"] == 3000  # three times the longest span, counted from the end
    assert (work["share"], rest["share"]) == (0.5, 0.5)
    third = COLUMNS // 3
    assert work["busy"] == [0] * third + [1] * third + [0] * third
    assert rest["busy"] == [1] * third + [0] * third + [1] * third
    assert timeline({"one": []})["rows"] == []


def test_mistakes_are_one_sentence(capsys):
    assert main(["bench", "--seconds", "0"]) == 2
    assert "--seconds must be > 0" in capsys.readouterr().err
    assert main(["bench", "--data.reus", "2"]) == 2
    assert "did you mean --data.reuse?" in capsys.readouterr().err


def test_replay_too_large_for_memory_is_not_gathered(monkeypatch):
    spec = make_env(config().env, 1, 0).spec
    monkeypatch.setattr("casa.bench.replay.available_bytes", lambda device: 1000)
    found = replay_cost(spec, torch.device("cpu"), frames=16_000, calls=5)
    assert found["sample_update_ms"] is None and found["draw_update_ms"] > 0
    assert found["frames"] == 16_000


def test_slope_is_least_squares():
    rng = np.random.default_rng(0)
    seconds = np.sort(rng.random(50) * 600)
    noise = rng.normal(size=50)
    rss = (300 + 2.5 * seconds / 60 + noise) * 2**20
    assert slope(list(seconds), list(rss)) == pytest.approx(np.polyfit(seconds / 60, rss / 2**20, 1)[0])


def test_the_fit_begins_after_the_warm_up():
    """Memory that grows for 20 s and is flat afterwards has slope 0, and a replay that fills until 60 s too."""
    seconds = [float(t) for t in range(101)]
    early = fit(seconds, [2**20 * min(t, 20.0) for t in seconds], filled=0.0)
    assert early["slope_mib_per_minute"] == pytest.approx(0, abs=1e-9) and early["replay_was_full"]
    late = fit(seconds, [2**20 * min(t, 60.0) for t in seconds], filled=60.0)
    assert late["slope_mib_per_minute"] == pytest.approx(0, abs=1e-9) and late["replay_was_full"]
    never = fit(seconds, [2**20 * t for t in seconds], filled=None)
    assert never["slope_mib_per_minute"] == pytest.approx(60) and not never["replay_was_full"]


def test_soak_watches_a_real_run():
    told = []
    found = soak(config(**{"log.every_steps": 200}), 0.05, told.append)
    assert 3 <= 60 * found["minutes"] < 10
    assert len(found["rss_mib"]) == len(found["seconds"]) >= 5
    assert found["last_mib"] > 50 and math.isfinite(found["slope_mib_per_minute"])
    assert found["steps"] > 0 and told


def test_soak_of_a_run_that_fails_says_why():
    with pytest.raises(Exception, match=r"ended early: casa: .*CartPole-v9"):
        soak(config(env="CartPole-v9"), 0.05)
