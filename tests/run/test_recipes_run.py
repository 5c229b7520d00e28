"""Every recipe runs from end to end, in both loops, on every kind of environment, and leaves what it promises."""

import math
from dataclasses import asdict

import pytest
from tests.support.runs import quiet, rows, said
from tests.support.small import DISCRETE

from casa.config.load import make_config, read_run
from casa.config.recipes import RECIPES
from casa.run import checkpoint
from casa.run.training import train

TINY = {
    "preset": "laptop",
    "env.vectorization": "sync",
    "env.num_envs": 8,
    "net.hidden": 16,
    "data.seq_len": 5,
    "data.batch": 4,
    "data.rollout": 0,
    "data.replay_frames": 2000,
    "data.min_fill": 40,
    "log.tensorboard": "no",
    "log.every_steps": 200,
    "checkpoint.every_steps": 200,
    "steps": 480,
}


def assert_is_resolved(kept, config):
    """What a run keeps is its configuration, with a value in the place of every "auto"."""
    for name, wanted in flat(config).items():
        assert flat(kept)[name] == wanted if wanted != "auto" else flat(kept)[name] != "auto", name


def flat(config):
    """Dotted field -> value."""
    groups = {name: value if isinstance(value, dict) else {"": value} for name, value in asdict(config).items()}
    return {f"{name}.{field}": value for name, fields in groups.items() for field, value in fields.items()}


def finished(recipe, path, **changes):
    """A finished run's (configuration, rows, episodes, what was said), after the checks that hold for every run."""
    config = make_config({**TINY, "recipe": recipe, "run_dir": str(path), **changes})
    console = quiet()
    last = train(config, console)
    assert_is_resolved(read_run((path / "config.yaml").read_text(), "config.yaml", trust=True), config)
    metrics, episodes = rows(path), rows(path, "episodes.jsonl")
    steps, every, envs = [row["step"] for row in metrics], config.log.every_steps, config.env.num_envs
    # The step in which an environment starts anew is no agent step: a row comes within one step of all of them.
    ended = sum(episode["step"] < steps[-1] for episode in episodes)
    if config.mode == "sync":
        due = [*range(every, config.steps, every), config.steps]
        assert all(at <= step < at + envs for step, at in zip(steps, due, strict=True))
        assert (steps[-1] + ended) % envs == 0
    assert steps == sorted(set(steps))  # async acts on while a row is written
    assert steps[-1] == last["step"] and config.steps <= steps[-1] < config.steps + envs
    assert all(math.isfinite(x) for row in metrics for x in row.values() if isinstance(x, float))
    for name in ("loss", "entropy", "policy_lag", "gradient_norm", "advantage_scale", "reuse", "learner_steps"):
        assert name in metrics[-1], name
    assert metrics[-1]["skipped"] == 0
    assert metrics[-1]["episodes"] == len(episodes)
    saved = checkpoint.load(path)
    assert saved.step == steps[-1]
    assert saved.meta["system"]["learner_steps"] == metrics[-1]["learner_steps"]
    assert {"model", "optimizer", "actor"} <= saved.state.keys()
    replays = config.data.kind in ("mixed", "prioritized")  # for the others it would be full again in a moment
    assert ("target" in saved.state, "replay" in saved.state) == (RECIPES[recipe].family == "R2D2", replays)
    # What arrived has been used as often as was asked for, but for what waits for a whole batch.
    data = config.data
    sequences = ((steps[-1] + ended) // envs - data.burn_in) // data.seq_len * envs
    started = data.min_fill // data.seq_len if replays else 0
    owed = (sequences - started) * data.reuse / data.batch
    assert owed - 2 <= metrics[-1]["learner_steps"] <= owed + data.reuse * 2 + 1
    text = said(console)
    assert f"{recipe} ({config.preset} preset)" in text and "this run, last 100 episodes" in text
    assert str(path / "metrics.jsonl") in text
    return config, metrics, episodes, text


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("recipe", DISCRETE)
def test_cartpole(recipe, mode, tmp_path):
    batch = {"data.batch": 8} if recipe in ("laser", "casa-plus") else {}
    config, metrics, episodes, text = finished(recipe, tmp_path / "run", env="CartPole-v1", mode=mode, **batch)
    assert metrics[-1]["reuse"] == pytest.approx(config.data.reuse, rel=0.1)
    assert metrics[-1]["frames"] == metrics[-1]["step"]
    assert episodes and all(e["score"] == e["length"] > 0 and 0 <= e["env"] < 8 for e in episodes)
    assert metrics[-1]["return"] == pytest.approx(sum(e["score"] for e in episodes[-100:]) / len(episodes[-100:]))
    assert f", {mode}, seed 0" in text
    assert checkpoint.load(tmp_path / "run", "best").step > 0


PAPER = {"preset": "paper", "net.lstm": 8, "data.burn_in": 5, "learner.warmup": 4}
"""Everything else as printed: recurrent where the paper is, rewards shaped, weights exchanged rarely."""


@pytest.mark.parametrize(
    ("recipe", "env", "mode", "changes"),
    [
        ("ppo-casa", "tests.support.tiny_envs:Catch", "sync", {}),
        ("r2d2", "tests.support.tiny_envs:Catch", "async", {}),
        ("casa", "tests.support.tiny_envs:Catch", "sync", PAPER),
        ("casa", "tests.support.tiny_envs:Picture", "sync", {}),
        ("r2d2-casa", "tests.support.tiny_envs:Picture", "async", {}),
        ("casa", "Breakout", "sync", {**PAPER, "net.backbone": "impala-deep"}),
        ("ppo", "ALE/Pong-v5", "async", {}),
    ],
)
def test_every_kind_of_environment(recipe, env, mode, changes, tmp_path):
    atari = "tiny" not in env
    # 29 steps are well beyond the fifth sequence: in async mode one group of environments may be a few steps behind.
    smaller = {"env.num_envs": 4, "steps": 4 * 29, "log.every_steps": 40, "checkpoint.every_steps": 40}
    smaller |= {"env.vectorization": "auto", "data.batch": 2, "data.min_fill": 20}
    steps = smaller if atari else {}
    changes = {"env": env, "mode": mode, **changes, **steps}
    _, metrics, episodes, text = finished(recipe, tmp_path / "run", **changes)
    assert metrics[-1]["frames"] == metrics[-1]["step"] * (4 if atari else 1)
    if atari:
        assert "random play" in text and "world record" in text
    else:
        assert len(episodes) > 60 and {e["length"] for e in episodes} == {5}
        assert {e["score"] for e in episodes} == {0.0, 1.0}
