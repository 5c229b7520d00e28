"""Learning curves of the plug-in example on CartPole, and their picture.

    python benchmarks/plugin.py                # three seeds, a few minutes on two cores; the picture needs matplotlib
    python benchmarks/plugin.py --plot-only
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from casa.runtime.machine import machine

RESULTS = Path("results/plugin")


def train(seed, steps):
    directory = Path("runs") / f"plugin-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    command = ["casa", "train", "--plugin", "examples.plugin", "--recipe", "cautious", "--env", "CartPole-v1"]
    command += ["--steps", str(steps), "--seed", str(seed), "--run-dir", str(directory), "--log.every-steps", "2000"]
    print(" ".join(command), flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    shutil.copy(directory / "metrics.jsonl", RESULTS / f"cautious-{seed}.jsonl")
    facts = {"command": " ".join(command), "machine": machine(torch.device("cpu"))}
    (RESULTS / f"cautious-{seed}.json").write_text(json.dumps(facts, indent=1) + "\n")


def plot(picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for path in sorted(RESULTS.glob("*.jsonl")):
        rows = [row for row in map(json.loads, path.read_text().splitlines()) if row["return"] is not None]
        axes.plot([r["step"] / 1000 for r in rows], [r["return"] for r in rows], label=f"seed {path.stem[-1]}")
    axes.axhline(500, color="gray", linestyle=":")
    axes.set(title="cautious on CartPole-v1", xlabel="thousand agent steps", ylabel="mean return, last 100 episodes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", default="docs/plugin.png")
    parser.add_argument("--plot-only", action="store_true")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in range(0 if args.plot_only else args.seeds):
        train(seed, args.steps)
    plot(args.picture)
