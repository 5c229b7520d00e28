"""Runs that nobody trained: numbers in the columns of metrics.jsonl, for pages."""

import math

from casa.page.report import RunData

HOSTILE = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"


def made_rows(count=60, seed=0, **more):
    return [
        {
            "step": 1000 * (i + 1),
            "frames": 4000 * (i + 1),
            "seconds": 2.5 * (i + 1),
            "steps_per_second": 400 + 10 * math.sin(i),
            "return": None if i == 0 else i + seed * math.sin(i / 5),
            "entropy": 2 / (i + 1),
            "loss_v": 0.5 ** (i / 10) + 0.01,
            "chi": 1.0,
            "cos_beta": math.cos(i / 10 + seed),
            "bottleneck": "learner" if i % 7 else "environment",
            "time_learner": 0.9,
            **more,
        }
        for i in range(count)
    ]


def made_run(recipe="casa", seed=0, env="CartPole-v1", rows=None, name=None, **config):
    fields = {"recipe": recipe, "seed": seed, "run_dir": f"runs/{recipe}-{seed}", "env.id": env, "learner.lr": 1e-3}
    return RunData(name or f"{recipe}-{seed}", {**fields, **config}, made_rows(seed=seed) if rows is None else rows)
