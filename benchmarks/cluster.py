"""Steps/s of the Ray engine by the number of rollout workers, beside the local engine, on one machine.

    python benchmarks/cluster.py --workers 1 2 4 8 --cores 2 --envs 20 --out results/cluster-speed.json -- --device cuda

Every worker has `--cores` emulator threads and `--envs` environments. The local engine plays the same environments with
as many emulator threads, for the first and the last number of workers. Each point is a `casa train` of its own. Steps
are counted after the first `--warm` seconds of learning. Flags of `casa train` after `--` are taken by every point.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from casa.run.jsonl import read_jsonl
from casa.runtime.machine import machine

STARTS = 120.0
"""Seconds that a point may take until its first learner step."""


def measure(flags: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Steps/s of one `casa train` over `--seconds`, with its shares of time."""
    with tempfile.TemporaryDirectory() as home:
        run, log = Path(home) / "run", Path(home) / "log"
        words = ["--run-dir", str(run), "--steps", "1e9", "--log.every-steps", "2000", "--log.tensorboard", "no"]
        command = [sys.executable, "-m", "casa", "train", "--checkpoint.every-seconds", "1e6", *words, *flags]
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            began = time.monotonic()
            learning: list[dict[str, Any]] = []
            while process.poll() is None and time.monotonic() - began < STARTS + options.warm + options.seconds:
                time.sleep(0.5)
                if (run / "metrics.jsonl").exists():
                    learning = [row for row in read_jsonl(run / "metrics.jsonl") if row.get("learner_steps", 0) > 0]
                if learning and learning[-1]["seconds"] - learning[0]["seconds"] > options.warm + options.seconds:
                    break
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        kept = [row for row in learning if row["seconds"] >= learning[0]["seconds"] + options.warm]
        if len(kept) < 2:
            return {"error": log.read_text()[-2000:]}
        steps, seconds = (kept[-1][name] - kept[0][name] for name in ("step", "seconds"))
        return {
            "steps_per_second": steps / seconds,
            "seconds": seconds,
            "learner_steps": kept[-1]["learner_steps"] - kept[0]["learner_steps"],
            "until_learning": learning[0]["seconds"],
            "shares": {name: mean(kept, name) for name in kept[-1] if name.startswith("time_")},
            "policy_lag": mean(kept, "policy_lag"),
        }


def mean(found: list[dict[str, Any]], name: str) -> float | None:
    """Over the time between the rows, of those that have it: a row is about what happened since the one before."""
    pairs = [(row[name], row["seconds"] - before["seconds"]) for before, row in pairwise(found) if name in row]
    return sum(value * seconds for value, seconds in pairs) / sum(seconds for _, seconds in pairs) if pairs else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--cores", type=int, default=1, help="emulator threads of a worker")
    parser.add_argument("--envs", type=int, default=20, help="environments of a worker")
    parser.add_argument("--gpus", type=float, default=0.0, help="share of a GPU of a worker")
    parser.add_argument("--warm", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--recipe", default="ppo-casa")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--env", default="Breakout")
    parser.add_argument("--out", type=Path, default=Path("results/cluster-speed.json"))
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    common = ["--recipe", options.recipe, "--preset", options.preset, "--env", options.env, "--mode", "async"]
    points = [("local", options.workers[0])]
    points += [("ray", count) for count in options.workers]
    points += [("local", options.workers[-1])] if len(options.workers) > 1 else []
    found: list[dict[str, Any]] = []
    for engine, count in points:
        flags = [*common, "--env.num-envs", str(count * options.envs)]
        if engine == "ray":
            flags += ["--engine", "ray", "--actors", str(count), "--cluster.actor-cpus", str(options.cores)]
        else:
            flags += ["--env.threads", str(count * options.cores)]
        result = {"engine": engine, "workers": count, "cores": count * options.cores}
        rest = [*options.flags, *(("--cluster.actor-gpus", str(options.gpus)) if engine == "ray" else ())]
        result |= measure([*flags, *rest], options)
        found.append(result)
        print(json.dumps(result), flush=True)
        facts = {"command": " ".join(sys.argv), "machine": machine(torch.device("cpu")), "points": found}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    show(found)


def show(found: list[dict[str, Any]]) -> None:
    """Print steps/s of each point, and its efficiency beside the first point of the same engine."""
    table = Table("engine", "workers", "emulator threads", "steps/s", "per thread, of one worker's")
    first: dict[str, float] = {}
    for point in found:
        speed = point.get("steps_per_second")
        if speed is None:
            table.add_row(point["engine"], str(point["workers"]), str(point["cores"]), "failed", "")
            continue
        one = first.setdefault(point["engine"], speed / point["cores"])
        share = f"{speed / point['cores'] / one:.2f}"
        table.add_row(point["engine"], str(point["workers"]), str(point["cores"]), f"{speed:,.0f}", share)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
