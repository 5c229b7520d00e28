"""Real runs in real directories on small environments, and what they leave behind."""

import io
import json
from pathlib import Path

import torch
from rich.console import Console

from casa.run import checkpoint
from casa.run.training import resume, train
from tests.support.small import small_config

CARTPOLE = {
    "env": "CartPole-v1",
    "env.vectorization": "sync",
    "env.num_envs": 8,
    "mode": "sync",
    "net.hidden": 16,
    "data.seq_len": 5,
    "data.batch": 4,
    "data.min_fill": 40,
    "data.replay_frames": 2000,
    "log.tensorboard": "no",
    "steps": 800,
    "log.every_steps": 200,
    "checkpoint.every_steps": 400,
}
ATARI = {
    **CARTPOLE,
    "env": "Breakout",
    "precision": "auto",
    "net.backbone": "impala-shallow",
    "env.num_envs": 4,
    "data.replay_frames": 4 * 20,
    "data.min_fill": 4 * 5,
    "data.batch": 2,
    "steps": 4 * 32,
    "log.every_steps": 4 * 5,
    "checkpoint.every_steps": 4 * 16,
}
CLOCK = {"seconds", "steps_per_second", "rss_bytes", "bottleneck"}
"""Fields of a row of metrics that depend on the machine, beside those that begin with time_."""


def run_config(recipe, path, **changes):
    return small_config(recipe, **{**CARTPOLE, "run_dir": str(path), **changes})


def quiet():
    return Console(file=io.StringIO(), width=200)


def said(console):
    """What a quiet console was told, on one line."""
    return " ".join(console.file.getvalue().split())


def run(recipe, path, **changes):
    """Train in a new directory; its path."""
    train(run_config(recipe, path, **changes), quiet())
    return Path(path)


def again(path, **options):
    """Resume; what was said."""
    console = quiet()
    resume(Path(path), console, **options)
    return said(console)


def saved_steps(path):
    """The agent steps of a run's checkpoints, in order."""
    return sorted(int(folder.name.split("-")[1]) for folder in (Path(path) / "checkpoints").glob("step-*"))


def is_due(step, at, envs=8):
    """Whether what was due at agent step `at` came in the first step of the environments that reached it.

    All environments step at once, and the steps in which some of them reset are no agent steps.
    """
    return at <= step < at + envs


def rows(path, name="metrics.jsonl"):
    return [json.loads(line) for line in (Path(path) / name).read_text().splitlines()]


def lasting(row):
    """A row of metrics without what the clock and the machine had to say."""
    return {key: value for key, value in row.items() if key not in CLOCK and not key.startswith("time_")}


def tensors(state, prefix=""):
    """Every tensor of a nested state, by path."""
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {name: x for key, value in items for name, x in tensors(value, f"{prefix}/{key}").items()}


def differences(one, other):
    """Names of what differs between the newest checkpoints of two runs: nothing, if they are equal to the bit."""
    a, b = (checkpoint.load(path) for path in (one, other))
    left, right = tensors(a.state), tensors(b.state)
    assert left.keys() == right.keys()
    found = [name for name in left if not torch.equal(left[name], right[name])]
    found += [f"meta/{key}" for key in a.meta if key not in ("seconds", "config") and a.meta[key] != b.meta[key]]
    logs = [[lasting(row) for row in rows(path)] + rows(path, "episodes.jsonl") for path in (one, other)]
    return found + ([] if logs[0] == logs[1] else ["logs"])
