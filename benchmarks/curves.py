"""Learning curves of several recipes on one game, and their picture.

    python benchmarks/curves.py --steps 400_000
    python benchmarks/curves.py --recipes impala,ppo --steps 250_000 --jobs 2
    python benchmarks/curves.py --plot-only          # needs matplotlib

Each run is `casa train` as a user would start it; its metrics.jsonl is copied to results/curves/.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from casa import atari57

RESULTS = Path("results/curves")


def run(recipe, args):
    directory = Path(args.runs) / f"{recipe}-{args.env}-{args.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "casa", "train", "--recipe", recipe, "--preset", "laptop", "--env", args.env]
    command += ["--steps", str(args.steps), "--seed", str(args.seed), "--run-dir", str(directory)]
    threads = max(len(os.sched_getaffinity(0)) // args.jobs, 1)
    command += ["--env.threads", str(threads), *args.extra]
    print(" ".join(command[1:]), flush=True)
    with (RESULTS / f"{recipe}-{args.env}-{args.seed}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    shutil.copy(directory / "metrics.jsonl", RESULTS / f"{recipe}-{args.env}-{args.seed}.jsonl")


def plot(args):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    known = atari57.reference(args.env)
    for path in sorted(RESULTS.glob(f"*-{args.env}-{args.seed}.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row for row in rows if row["return"] is not None]
        name = path.stem.removesuffix(f"-{args.env}-{args.seed}")
        left.plot([r["step"] / 1000 for r in rows], [r["return"] for r in rows], label=name)
        measured = [r for r in rows if "entropy" in r]
        right.plot([r["step"] / 1000 for r in measured], [r["entropy"] for r in measured], label=name)
    left.axhline(known.random, color="gray", linestyle=":", label="random play")
    left.set(title=f"{args.env}: mean return of the last 100 episodes", xlabel="thousand agent steps", ylabel="return")
    right.set(title="entropy of the policy", xlabel="thousand agent steps", ylabel="nats")
    left.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(args.picture, dpi=120)
    print(f"wrote {args.picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="casa,ppo-casa,r2d2-casa,r2d2,impala,ppo")
    parser.add_argument("--env", default="Breakout")
    parser.add_argument("--steps", default="400_000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", default="runs/curves")
    parser.add_argument("--picture", default="results/curves/curves.png")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, which share the cores")
    parser.add_argument("--plot-only", action="store_true")
    args, args.extra = parser.parse_known_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not args.plot_only:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda recipe: run(recipe, args), args.recipes.split(",")))
    plot(args)


if __name__ == "__main__":
    main()
