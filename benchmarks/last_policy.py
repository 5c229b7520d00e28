"""How good is the last policy of a run with the defaults? The mean of the last training episodes looks back too far.

    python benchmarks/last_policy.py --recipes r2d2-casa --out results/learning/last-policy/r2d2-casa.json

Each recipe is trained on CartPole-v1 for 100,000 steps, and its last checkpoint plays 100 new episodes: sampled as in
training (R2D2's recipes: argmax Q with ε = 0.001), and greedily. One run after the other, one thread each.
"""

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path

import torch

import casa
from casa.runtime.machine import machine

KEPT = ("policy", "mean", "min", "max", "returns")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["r2d2-casa", "casa-plus"])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for recipe, seed in product(args.recipes, range(args.seeds)):
        with tempfile.TemporaryDirectory() as folder:
            run = casa.train(recipe, args.env, args.steps, seed=seed, run_dir=Path(folder) / "run", quiet=True)
            result = run.evaluate(args.episodes)
            training = run.row["return"]
        row = {"recipe": recipe, "env": args.env, "seed": seed, "step": result["step"], "last_100_trained": training}
        row |= {mode: {key: value[key] for key in KEPT} for mode, value in result["modes"].items()}
        found.append(row)
        means = {mode: (row[mode]["mean"], row[mode]["min"]) for mode in result["modes"]}
        print(f"{recipe} {args.env} {seed}: training {training:.1f}, (mean, least) {means}", flush=True)
        args.out.write_text(json.dumps({"machine": machine(torch.device("cpu")), "runs": found}) + "\n")


if __name__ == "__main__":
    main()
