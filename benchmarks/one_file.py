"""Learning curves of examples/casa_one_file.py: seeds one after another, and their picture.

    python benchmarks/one_file.py                 # five seeds of LunarLander-v3, three each of CartPole and Acrobot
    python benchmarks/one_file.py --plot-only     # needs matplotlib

Writes results/one-file/ENV-SEED.csv, summary.json (commands, processor, final returns) and docs/one-file.png.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

RESULTS = Path("results/one-file")
# environment: steps, seeds, the return that counts as solved
RUNS = {
    "LunarLander-v3": (500_000, range(1, 6), 200),
    "CartPole-v1": (150_000, range(1, 4), 475),
    "Acrobot-v1": (150_000, range(1, 4), -100),
}


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def read(env, seed):
    with (RESULTS / f"{env}-{seed}.csv").open(newline="") as file:
        return [{name: float(x) for name, x in row.items()} for row in csv.DictReader(file)]


def train(env, steps, seed):
    path = RESULTS / f"{env}-{seed}.csv"
    arguments = ["examples/casa_one_file.py", "--env", env, "--steps", str(steps), "--seed", str(seed)]
    print("python", *arguments, flush=True)
    subprocess.run([sys.executable, *arguments, "--csv", str(path)], check=True)
    rows = read(env, seed)
    halfway = next(row for row in rows if row["steps"] >= steps / 2)
    return {
        "command": "python " + " ".join(arguments),
        "steps": int(rows[-1]["steps"]),
        "seconds": rows[-1]["seconds"],
        "return at half the steps": halfway["return"],
        "return": rows[-1]["return"],
    }


def plot(path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(RUNS), figsize=(12, 3.8), layout="constrained")
    for axis, (env, (_, seeds, solved)) in zip(axes, RUNS.items(), strict=True):
        for seed in seeds:
            rows = read(env, seed)
            axis.plot([r["steps"] / 1000 for r in rows], [r["return"] for r in rows], label=f"seed {seed}", lw=1.2)
        axis.axhline(solved, color="gray", linestyle=":")
        axis.set(title=env, xlabel="thousand steps", ylabel="return of the last 100 episodes")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", default="docs/one-file.png")
    parser.add_argument("--plot-only", action="store_true")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not args.plot_only:
        runs = {f"{env}-{seed}": train(env, steps, seed) for env, (steps, seeds, _) in RUNS.items() for seed in seeds}
        machine = {"processor": processor(), "cores": os.cpu_count(), "threads": 1}
        (RESULTS / "summary.json").write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")
    plot(args.picture)


if __name__ == "__main__":
    main()
