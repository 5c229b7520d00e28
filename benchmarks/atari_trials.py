"""Trials of settings, on Atari or others: `python benchmarks/atari_trials.py TRIALS.yaml --out FILE.jsonl --jobs 8`.

TRIALS.yaml holds `common` (flags of `casa train` for every run), `games` (a list, or game -> flags), `seeds` and
`trials` (name -> flags; `=NAME` stands for those of that trial, or of one in `bases`, which are not run). Every trial
is trained on every game with every seed, `--jobs` at a time; on a GPU under NVIDIA's Multi-Process Service, if that can
be started. When `--minutes` are over, unfinished runs are checkpointed and stopped; `--resume` continues them, and
leaves out finished ones. FILE.jsonl gets a line for the machine and one for each run: its flags, some rows of its log,
and `wall`, the seconds of this call until then.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import torch
import yaml

from casa.runtime.machine import machine

KEPT = ("step", "seconds", "return", "learner_steps", "loss_v", "loss_q", "entropy", "value", "return_scale",
        "explained_variance", "kl", "clip_fraction", "advantage_scale", "gradient_norm", "policy_lag", "chi",
        "cos_beta", "bottleneck")  # fmt: skip
POINTS = 40
"""Rows kept of each run."""


def rows_of(directory):
    file = directory / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    rows = [json.loads(line) for line in lines]
    every = max(len(rows) // POINTS, 1)
    return [{key: row[key] for key in KEPT if key in row} for row in rows[::-1][::every][::-1]]


def finished(directory):
    rows, config = rows_of(directory), directory / "config.yaml"
    return bool(rows) and rows[-1]["step"] >= yaml.safe_load(config.read_text())["steps"]


def written_out(trials, name):
    """The flags of a trial, with `=NAME` replaced by those of that trial; a later flag overrides an earlier one."""
    return " ".join(written_out(trials, word[1:]) if word[0] == "=" else word for word in trials[name].split())


def keep(file, found):
    with file.open("a") as out:
        out.write(json.dumps(found) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    where = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    keep(args.out, {"batch": args.trials.stem, "machine": where})
    asked = yaml.safe_load(args.trials.read_text())
    if shutil.which("nvidia-cuda-mps-control"):
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)
    games = asked["games"] if isinstance(asked["games"], dict) else dict.fromkeys(asked["games"], "")
    named = {**asked.get("bases", {}), **asked["trials"]}
    began = time.monotonic()
    end = began + 60 * args.minutes

    def train(name, game, seed):
        directory = Path("runs/trials") / f"{args.trials.stem}-{name}-{game.replace('/', '-')}-{seed}"
        flags = f"{asked['common']} {games[game]} {written_out(named, name)}".split()
        command = [sys.executable, "-m", "casa"]
        if args.resume and finished(directory):
            return
        if args.resume and any(directory.glob("checkpoints/*")):
            command += ["resume", str(directory)]
        else:
            shutil.rmtree(directory, ignore_errors=True)
            command += ["train", "--env", game, "--seed", str(seed), *flags, "--run-dir", str(directory)]
        left, status = end - time.monotonic(), "not started"
        if left > 60:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with (directory.parent / f"{directory.name}.log").open("a" if "resume" in command else "w") as log:
                job = subprocess.Popen(command, stdout=log, stderr=log)
                try:
                    status = job.wait(left)
                except subprocess.TimeoutExpired:
                    job.send_signal(signal.SIGTERM)
                    status = job.wait()
        rows = rows_of(directory)
        found = {"batch": args.trials.stem, "trial": name, "game": game, "seed": seed, "flags": flags}
        found |= {"status": status, "wall": time.monotonic() - began, "rows": rows}
        keep(args.out, found)
        returns = [row.get("return") for row in [*rows[:: max(len(rows) // 4, 1)], *rows[-1:]]]
        steps, seconds = (rows[-1]["step"], rows[-1]["seconds"]) if rows else (0, 0)
        print(f"{name} {game} {seed}: {steps} steps, {seconds:.0f} s, {returns}", flush=True)

    # Game by game, so that a stop leaves whole columns of the table.
    runs = [(name, game, seed) for seed, game, name in product(asked["seeds"], games, asked["trials"])]
    with ThreadPoolExecutor(args.jobs) as pool:
        for job in [pool.submit(train, *run) for run in runs]:
            job.result()


if __name__ == "__main__":
    main()
