"""The same seed gives the same run to the bit, and a resumed run is, where that is asked for, the one never killed."""

import shutil
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
import yaml
from tests.support.runs import ATARI, again, differences, is_due, rows, run, run_config, saved_steps

import casa
from casa.engines.build import build_network, build_system
from casa.errors import UserError
from casa.run import checkpoint
from casa.run.evaluate import evaluate
from casa.run.training import Training, resume

EXACT = {"checkpoint.keep": 9, "checkpoint.exact": True}
LSTM = {"net.lstm": 8, "data.burn_in": 5}
SCALE = "return_scale"
CASES = {
    "ppo-casa": ("ppo-casa", {}),
    "r2d2": ("r2d2", {}),
    "ppo-casa with scaled rewards": ("ppo-casa", {"agent.reward_scale": "return"}),
    "r2d2 with normalized observations": ("r2d2", {"net.obs_norm": True}),
    "casa on a normalized grid": ("casa", {"env": "tests.support.tiny_envs:Catch", "net.obs_norm": True}),
    "casa with LSTM and burn-in": ("casa", LSTM),
    "r2d2 with LSTM and burn-in": ("r2d2", LSTM),
    "casa with continuous actions": ("casa", {"env": "Pendulum-v1"}),
    "casa with a Gaussian": ("casa", {"env": "Pendulum-v1", "agent.head": "casa-gaussian"}),
    "ppo-gaussian": ("ppo-gaussian", {"env": "Pendulum-v1"}),
    "laser": ("laser", {}),
    "rainbow": ("rainbow", {}),
    "rainbow with LSTM and burn-in": ("rainbow", LSTM),
    "casa with mixed replay, LSTM and burn-in": ("casa", {**LSTM, "data.kind": "mixed"}),
    "impala on Atari": ("impala", ATARI),
    "r2d2-casa on Atari": ("r2d2-casa", ATARI),
}


def start(case, path, **changes):
    recipe, settings = CASES[case]
    return run(recipe, path, **{**EXACT, **settings, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """case -> the directory of an uninterrupted run."""
    made = {}

    def get(case):
        if case not in made:
            made[case] = start(case, tmp_path_factory.mktemp("whole") / "run")
        return made[case]

    return get


@pytest.mark.parametrize("case", ["ppo-casa", "casa with LSTM and burn-in", "r2d2", "laser", "rainbow"])
def test_same_seed_same_bits(case, whole, tmp_path):
    assert differences(whole(case), start(case, tmp_path / "b")) == []


def test_environments_in_a_pool_of_processes_change_no_bit(whole, tmp_path):
    found = differences(whole("ppo-casa"), start("ppo-casa", tmp_path / "b", **{"env.vectorization": "pool"}))
    assert found == ["meta/spec"]  # which says how the environments ran


def test_same_seed_same_bits_on_two_threads(tmp_path):
    torch.set_num_threads(2)
    one, other = (start("impala on Atari", tmp_path / name, steps=4 * 12) for name in "ab")
    assert rows(one)[-1]["learner_steps"] >= 8
    assert differences(one, other) == []


@pytest.mark.parametrize("case", ["ppo-casa", "r2d2", "impala on Atari"])
def test_other_seed_other_bits(case, whole, tmp_path):
    found = differences(whole(case), start(case, tmp_path / "b", seed=1))
    weights = [name for name in found if name.startswith("/model/")]
    # Biases of a last layer begin at 0 with every seed, but learn from other data. The scale of returns is 1 for all
    # where rewards are not scaled.
    assert weights == [f"/model/{name}" for name in checkpoint.load(tmp_path / "b").state["model"] if name != SCALE]
    assert "logs" in found


def wind_back(path, copy, step):
    """A copy of a run as kill -9 would have left it just before its next checkpoint."""
    shutil.copytree(path, copy)
    for folder in (copy / "checkpoints").glob("step-*"):
        if int(folder.name.split("-")[1]) > step:
            shutil.rmtree(folder)
    return copy


@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(case, whole, tmp_path):
    every = CASES[case][1].get("checkpoint.every_steps", 400)
    middle = saved_steps(whole(case))[1]
    assert is_due(middle, every, CASES[case][1].get("env.num_envs", 8))
    copy = wind_back(whole(case), tmp_path / "copy", middle)
    told = again(copy, trust=True)
    assert f"resumed at {middle:,} steps" in told
    assert differences(whole(case), copy) == []


def test_a_compiled_run_resumed_equals_uninterrupted(tmp_path, monkeypatch):
    """Adam's moments are new tensors after loading; a compiled step must use those."""
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="aot_eager"))
    path = run("ppo-casa", tmp_path / "a", **EXACT, compile="yes")
    assert yaml.safe_load((path / "config.yaml").read_text())["compile"] in ("yes", True)
    copy = wind_back(path, tmp_path / "b", saved_steps(path)[1])
    again(copy)
    assert differences(path, copy) == []


def test_exact_saves_the_data_whatever_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("casa.run.training.SMALL_REPLAY", 1)
    for recipe in ("casa", "r2d2"):
        path = run(recipe, tmp_path / recipe, **EXACT)
        copy = wind_back(path, tmp_path / f"{recipe} again", saved_steps(path)[1])
        assert "the replay was not saved" not in again(copy)
        assert differences(path, copy) == []


def test_resumed_between_two_rows_of_metrics(tmp_path):
    """Means over learner steps before and after the checkpoint are one mean."""
    path = run("casa", tmp_path / "a", **{**EXACT, "log.every_steps": 320})
    copy = wind_back(path, tmp_path / "b", saved_steps(path)[1])
    again(copy)
    assert differences(path, copy) == []


def test_resumed_twice(tmp_path):
    changes = {**EXACT, "checkpoint.every_steps": 200}
    path = run("r2d2", tmp_path / "a", **changes)
    _, first, second, *_ = saved_steps(path)
    assert is_due(first, 200) and is_due(second, 400)
    again(wind_back(path, tmp_path / "b", first))
    copy = wind_back(tmp_path / "b", tmp_path / "c", second)
    again(copy)
    assert differences(path, copy) == []


@pytest.mark.parametrize("case", ["ppo-casa", "r2d2", "impala on Atari"])
def test_checkpoints_on_the_way_change_nothing(case, tmp_path):
    """Least of all do they cut episodes: a run that saves often is the run that never saves."""
    often = {"checkpoint.exact": False, "checkpoint.keep": 99}
    one, other = (
        start(case, tmp_path / str(every), **{**often, "checkpoint.every_steps": every}) for every in (24, 10**6)
    )
    saved = [len(list((path / "checkpoints").glob("step-*"))) for path in (one, other)]
    assert saved[0] > 4 and saved[1] == 2
    assert [name for name in differences(one, other) if name != "meta/best"] == []  # the best that was saved


@pytest.mark.parametrize("recipe", ["r2d2", "casa"])
def test_saved_in_the_middle_of_episodes_they_end_as_truncations(recipe, tmp_path):
    """In a replay that is not full yet, and in a ring that has gone round several times."""
    settings = {"checkpoint.keep": 9, "checkpoint.replay": "yes"}
    path = run(recipe, tmp_path / "a", **settings)
    middle = saved_steps(path)[1]
    assert is_due(middle, 400)
    saved = checkpoint.load(path, middle)
    before, columns = saved.state["replay"]["ring"], torch.arange(8)
    system, fresh = (build_system(run_config(recipe, tmp_path / name), 1) for name in "bc")
    try:
        fresh.begin()
        system.load_state(saved.state, saved.meta["system"])
        ring, written = system.ring, before["written"]
        size = ring.shape.capacity
        assert (written.max() > size) == (recipe == "casa")
        last, open_, first = (written - 1) % size, written % size, (written + 1) % size
        running = ~before["starts"][open_, columns] & ~before["terminated"][last, columns]
        assert running.sum() > 0 and (before["opened"] == written + 1).all()
        assert torch.equal(ring.truncated[last, columns], before["truncated"][last, columns] | running)
        assert (ring.written == written.numpy() + 1).all()
        system.begin()
        assert ring.starts[first, columns].all()
        # What was open is a final observation: no transition, in a sequence that goes on with a new episode.
        batch = ring.gather(columns.numpy(), (written - 4).numpy(), 5)
        assert not batch.valid[4].any() and torch.equal(batch.obs[4], before["frames"][open_ * 8 + columns])
        # The new episodes are not those that the run began with.
        assert not torch.equal(ring.frames[first * 8 + columns], fresh.ring.frames[columns])
    finally:
        system.close()
        fresh.close()
    copy = wind_back(path, tmp_path / "copy", middle)
    again(copy)
    assert is_due(rows(copy)[-1]["step"], 800)
    steps = [row["step"] for row in rows(copy, "episodes.jsonl")]
    assert steps == sorted(steps) and len(steps) == checkpoint.load(copy).meta["system"]["episodes"]


def test_a_checkpoint_of_overlapping_loops_counts_the_episodes_that_are_written(tmp_path, monkeypatch):
    """Those that ended since the loop last said so, too: a resumed run drops what is later, and nothing else."""
    take = Training._take

    def slowly(self, *news):
        take(self, *news)
        time.sleep(0.01)  # the environments go on meanwhile

    monkeypatch.setattr(Training, "_take", slowly)
    settings = {"env": "tests.support.tiny_envs:Catch", "mode": "async", "steps": 1500, "log.every_steps": 1500}
    path = run("casa", tmp_path / "a", **{**settings, "checkpoint.every_steps": 50, "checkpoint.keep": 999})
    episodes = [row["step"] for row in rows(path, "episodes.jsonl")]
    saved = [checkpoint.load(folder, groups=()) for folder in (path / "checkpoints").glob("step-*")]
    assert len(saved) > 10
    for each in saved:
        assert sum(step <= each.step for step in episodes) == each.meta["system"]["episodes"]


def test_checkpoints_by_the_clock(tmp_path):
    changes = {"checkpoint.every_steps": 0, "checkpoint.every_seconds": 0.1, "checkpoint.keep": 99}
    path = run("casa", tmp_path / "a", **{**changes, "steps": 4000})
    taken = saved_steps(path)
    assert len(taken) >= 4 and taken[0] == 0 and is_due(taken[-1], 4000)
    assert (len(taken) - 2) * 0.1 <= rows(path)[-1]["seconds"]  # the first and the last come anyway


def test_without_replay_it_goes_on_but_not_to_the_bit(tmp_path):
    path = run("r2d2", tmp_path / "a", **{"checkpoint.keep": 9, "checkpoint.replay": "no"})
    assert "replay" not in checkpoint.load(path).state
    copy = wind_back(path, tmp_path / "b", saved_steps(path)[1])
    assert "the replay was not saved" in again(copy)
    assert is_due(rows(copy)[-1]["step"], 800)
    assert any(name.startswith("/model/") for name in differences(path, copy))


def test_more_steps_than_planned(tmp_path):
    path = run("ppo-casa", tmp_path / "a")
    again(path, steps=1200, lr=1e-3)
    steps = [row["step"] for row in rows(path)]
    assert all(is_due(step, at) for step, at in zip(steps, range(200, 1201, 200), strict=True))
    assert checkpoint.load(path).step == steps[-1]


@pytest.mark.parametrize("recipe", ["casa", "r2d2", "laser"])
def test_async_ends_with_bounded_lag_and_the_reuse_that_was_asked_for(recipe, tmp_path):
    changes = {"mode": "async", "steps": 4000, "log.every_steps": 500, "checkpoint.every_steps": 1500}
    path = run(recipe, tmp_path / "a", **changes)
    last = rows(path)[-1]
    assert is_due(last["step"], 4000)
    assert last["reuse"] == pytest.approx(2, rel=0.15)
    slots = last["step"] + last["episodes"]  # an episode's final observation has a slot, too
    assert last["learner_steps"] == pytest.approx(slots * 2 / (5 * 4), rel=0.15)
    lags = [row["policy_lag"] for row in rows(path) if "policy_lag" in row]
    assert len(lags) >= 7 and all(lag >= 0 for lag in lags)
    if recipe == "casa":
        # A sequence waits while at most the ring's content is learned: two blocks and one batch, used twice.
        assert max(lags) < 30
    # Resuming is not to the bit, but it goes on.
    again(path, steps=5000, lr=1e-3)
    assert is_due(rows(path)[-1]["step"], 5000)


def test_resumed_with_more_environments_the_actors_still_get_new_weights(tmp_path):
    """What is kept counts steps of one environment; with four times as many the run has had fewer."""
    path = run("casa", tmp_path / "a", **{"mode": "async", "steps": 4000})
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["env"]["num_envs"] = 32
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    again(path, steps=8000, lr=1e-3)
    assert is_due(rows(path)[-1]["step"], 8000, 32)
    assert rows(path)[-1]["policy_lag"] < 100


def test_async_serves_every_atari_environment(tmp_path):
    """In batches of the first that are ready, across a checkpoint; and what was trained so can be evaluated."""
    changes = {"mode": "async", "env.group_size": 2, "env.num_envs": 8, "data.batch": 4, "steps": 8 * 60}
    changes["env.max_frames"] = 400  # a greedy policy may wait for ever for a ball that it does not ask for
    changes |= {"checkpoint.every_steps": 8 * 30, "checkpoint.keep": 9, "checkpoint.replay": "yes"}
    path = run("casa", tmp_path / "a", **{**ATARI, **changes})
    written = checkpoint.load(path).state["replay"]["ring"]["written"].tolist()
    last = rows(path)[-1]
    assert is_due(last["step"], 8 * 60)
    # Every environment has a slot cut at the end, and at no checkpoint before. The final observation of an episode has
    # one as well; of one that ends in the last step, it is the one that is cut.
    assert 0 <= last["step"] + last["episodes"] + 8 - sum(written) <= last["episodes"]
    assert min(written) > 0.3 * max(written)  # ALE is not fair to the last bit, but nobody is left out
    assert evaluate(casa.load(path), episodes=2, modes=("greedy",))["episodes"] == 2


@pytest.mark.parametrize("change", ["env: {num_envs: 4}", "net: {hidden: 8}"])
def test_a_checkpoint_that_does_not_fit_the_configuration_names_the_field(change, tmp_path):
    path = run("r2d2", tmp_path / "a")
    config = yaml.safe_load((path / "config.yaml").read_text())
    for group, fields in yaml.safe_load(change).items():
        config[group].update(fields)
        field = f"{group}.{next(iter(fields))}"
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=rf"does not fit config.yaml, in which was changed: {field} \d+ \(was \d+\)$"):
        again(path, steps=1200)


def test_fewer_steps_than_taken_are_refused_and_nothing_changes(tmp_path):
    path = run("casa", tmp_path / "a")
    before = (path / "config.yaml").read_text()
    with pytest.raises(UserError, match=rf"has taken {saved_steps(path)[-1]} steps; give --steps more than 20"):
        again(path, steps=20)
    assert (path / "config.yaml").read_text() == before


def test_a_checkpoint_of_another_network_is_one_sentence(tmp_path, monkeypatch):
    path = run("casa", tmp_path / "a")

    def other(config, spec):
        return build_network(replace(config, net=replace(config.net, hidden=config.net.hidden + 1)), spec)

    monkeypatch.setattr("casa.engines.build.build_network", other)
    monkeypatch.setattr("casa.run.agent.build_network", other)
    with pytest.raises(UserError, match=r"holds another network than this version of casa builds .*; train anew$"):
        again(path, steps=1200)
    with pytest.raises(UserError, match="are of another network than this version of casa builds"):
        casa.load(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_resuming_on_a_device_that_is_not_there_changes_nothing(tmp_path):
    path = run("casa", tmp_path / "a")
    before = (path / "config.yaml").read_text()
    with pytest.raises(UserError, match="'cuda' is not available"):
        resume(path, device="cuda", steps=1200)
    assert (path / "config.yaml").read_text() == before
    resume(path, device="cpu", steps=1200, lr=1e-3)
    assert yaml.safe_load((path / "config.yaml").read_text())["device"] == "cpu"
