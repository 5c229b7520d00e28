"""Mixed replay against data that is used in order, on vector environments: one run after the other, one thread each.

    python benchmarks/mixed.py --out results/mixed.json          # needs box2d
    python benchmarks/mixed.py --out mixed.json --envs CartPole-v1 --seeds 1 3
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch

import casa
from casa.runtime.machine import machine

STEPS = {"CartPole-v1": 100_000, "LunarLander-v3": 200_000}
BEFORE = {"data.reuse": 4, "agent.discount": 0.99, "agent.trust_region": 0.0}
"""What the `classic` preset of `casa` and `impala` had when results/mixed.json was made."""
MIXED = {**BEFORE, "data.kind": "mixed"}
CASES = {
    "casa": ("casa", BEFORE),
    "casa, mixed": ("casa", MIXED),
    "casa, mixed, reuse 8, batch 16": ("casa", {**MIXED, "data.reuse": 8, "data.batch": 16}),
    "casa, mixed, reuse 8": ("casa", {**MIXED, "data.reuse": 8}),
    "casa, reuse 8": ("casa", {**BEFORE, "data.reuse": 8}),
    "casa, reuse 8, batch 16": ("casa", {**BEFORE, "data.reuse": 8, "data.batch": 16}),
    "impala": ("impala", BEFORE),
    "laser": ("laser", {}),
}
KEPT = ("step", "seconds", "return", "entropy", "policy_lag", "replay_age", "trusted", "reuse", "learner_steps")


def curve(case, env, seed):
    """The rows of one run with the defaults but for the case's settings, thinned to what is reported."""
    recipe, settings = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        run = casa.train(recipe, env, STEPS[env], seed=seed, run_dir=Path(folder) / "run", quiet=True, **settings)
        return [{key: row[key] for key in KEPT if key in row} for row in run.metrics]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--envs", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for env in args.envs:
        for case, seed in ((case, seed) for case in args.cases for seed in args.seeds):
            rows = curve(case, env, seed)
            found.append({"env": env, "case": case, "settings": CASES[case][1], "seed": seed, "rows": rows})
            print(f"{env} | {case} | {seed} | {rows[-1]}", flush=True)
            args.out.write_text(json.dumps({"machine": machine(torch.device("cpu")), "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
