"""What is learned with the defaults: `casa train --recipe R --env E` and nothing else, on small environments.

    python benchmarks/learning.py --jobs 2                 # needs box2d; the picture needs matplotlib
    python benchmarks/learning.py --envs CartPole-v1 --seeds 5
    python benchmarks/learning.py --plot-only

Each run's metrics.jsonl is thinned to results/learning/RECIPE-ENVIRONMENT-SEED.jsonl. A run whose file is there is
not repeated.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import torch

from casa.runtime.machine import machine

RESULTS = Path("results/learning")
STEPS = {"CartPole-v1": 100_000, "Acrobot-v1": 150_000, "LunarLander-v3": 200_000}
RECIPES = ("casa", "ppo-casa", "ppo", "impala", "r2d2-casa")
KEPT = ("step", "seconds", "return", "entropy", "value", "loss_v", "gradient_norm", "return_scale", "learner_steps")


def train(recipe, env, seed):
    name = f"{recipe}-{env}-{seed}"
    result = RESULTS / f"{name}.jsonl"
    if result.exists():
        return
    directory = Path("runs/learning") / name
    shutil.rmtree(directory, ignore_errors=True)
    command = ["casa", "train", "--recipe", recipe, "--env", env, "--steps", str(STEPS[env]), "--seed", str(seed)]
    command += ["--run-dir", str(directory)]
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    result.write_text("".join(json.dumps({key: row.get(key) for key in KEPT}) + "\n" for row in rows))
    print(f"{name}: {rows[-1]['return']:.1f} after {time.perf_counter() - began:.0f} s", flush=True)


def table():
    """Markdown: the mean return of the last 100 episodes, by seed."""
    print("| environment | steps | recipe | return by seed | steps/s |\n|---|---|---|---|---|")
    for env, recipe in product(STEPS, RECIPES):
        last = [
            json.loads(path.read_text().splitlines()[-1]) for path in sorted(RESULTS.glob(f"{recipe}-{env}-*.jsonl"))
        ]
        if last:
            scores = ", ".join(f"{row['return']:.0f}" for row in last)
            speed = sum(row["step"] / row["seconds"] for row in last) / len(last)
            print(f"| {env} | {STEPS[env]:,} | `{recipe}` | {scores} | {speed:,.0f} |")


def plot(picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(STEPS), figsize=(13, 3.8), layout="constrained")
    for axis, env in zip(axes, STEPS, strict=True):
        for color, recipe in enumerate(RECIPES):
            for path in sorted(RESULTS.glob(f"{recipe}-{env}-*.jsonl")):
                rows = [row for row in map(json.loads, path.read_text().splitlines()) if row["return"] is not None]
                label = recipe if path.stem.endswith("-0") else None
                axis.plot([r["step"] / 1000 for r in rows], [r["return"] for r in rows], f"C{color}", label=label)
        axis.set(title=env, xlabel="thousand agent steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean return, last 100 episodes")
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--picture", default="docs/learning.png")
    parser.add_argument("--plot-only", action="store_true")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not args.plot_only:
        (RESULTS / "machine.json").write_text(json.dumps(machine(torch.device("cpu")), indent=1) + "\n")
        runs = list(product(range(args.seeds), args.envs, args.recipes))
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: train(run[2], run[1], run[0]), runs))
    table()
    plot(args.picture)


if __name__ == "__main__":
    main()
