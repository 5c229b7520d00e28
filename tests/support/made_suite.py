"""A suite's directory without training: logs, checkpoints' names and evaluations, written by hand."""

import json

from casa.experiments.state import prepare
from casa.suite import spec
from casa.suite.schedule import EVALUATION

STEPS = 3000
ATARI = ("ALE/Breakout-v5", "ALE/Pong-v5")


def make_suite(**changes):
    given = {"name": "atari57", "envs": ATARI, "recipes": ("casa",), "seeds": (0, 1), "steps": STEPS}
    given["settings"] = {"preset": "laptop"}
    return spec.Suite(**{**given, **changes})


def write_run(run, steps=STEPS, score=3.0, evaluation=5.0, checkpoints=(STEPS,), episodes=30):
    """A run whose log ends at `steps` with the training return `score`; `evaluation` None: not evaluated."""
    prepare(run.path, dict(run.settings))
    marks = (steps // 3, 2 * steps // 3, steps)
    rows = [{"step": at, "seconds": at / 100, "return": score * at / steps} for at in marks]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run.path / "config.yaml").write_text("x")
    for step in checkpoints:
        (run.path / "checkpoints" / f"step-{step:012d}").mkdir(parents=True)
    if evaluation is not None:
        write_evaluation(run.path, evaluation, steps, episodes)


def write_evaluation(path, mean, step=STEPS, episodes=30):
    modes = {"sampled": {"mean": mean, "seconds": 2.0}}
    (path / EVALUATION).write_text(json.dumps({"step": step, "episodes": episodes, "modes": modes}))


def write_suite(directory, suite, scores):
    """`scores`: (environment, seed) -> (training, evaluation)."""
    spec.save(suite, directory)
    for run in suite.planned(directory):
        if (run.env, run.seed) in scores:
            training, evaluation = scores[run.env, run.seed]
            write_run(run, suite.steps, training, evaluation, (suite.steps,))
