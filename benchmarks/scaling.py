"""Steps/s end to end, beside emulation alone, by cores and by environments, each point in a process of its own.

    python benchmarks/scaling.py --recipe casa --cores 2 4 8 16 --envs 32 64 160 320 640 --out results/scaling.json

Cores are varied at the recipe's number of environments, environments at all cores. Emulation alone has the same
environments, served in the same batches, with random actions; the two take turns. Every flag of `casa train` that
follows `--` is taken by every point.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table


def point(options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """One measurement in this process, on the cores that it was given."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    began = time.perf_counter()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores[0]])
    from casa.config import load_config
    from casa.envs import make_env
    from casa.train.bench_stages import EndToEnd
    from casa.train.machine import machine
    from casa.train.resources import pick_mode

    config = load_config(flags)
    loop = EndToEnd(config, pick_mode(config), make_env)
    made = time.perf_counter()
    loop.warm_up(2.0)
    ready = time.perf_counter()
    rounds, cores = [], []
    for _ in range(2):
        before, start = cpu_seconds(loop.loop), time.perf_counter()
        speed = loop.measure(options.seconds)
        after, elapsed = cpu_seconds(loop.loop), time.perf_counter() - start
        cores.append({name: round((after[name] - before.get(name, 0.0)) / elapsed, 3) for name in after})
        rounds.append((speed, emulation(loop.system.envs, options.seconds)))
    found = {
        "cores": len(os.sched_getaffinity(0)),
        "envs": config.env.num_envs,
        "batch": loop.system.actors[0].batch,
        "recipe": config.recipe,
        "end_to_end": [a for a, _ in rounds],
        "emulation": [b for _, b in rounds],
        "busy_cores_by_thread": cores,
        "ratio": median(a / b for a, b in rounds),
        "seconds_to_make": made - began,
        "seconds_to_warm_up": ready - made,
        **{name: loop.row[name] for name in loop.row if name.startswith("time_") or name == "policy_lag"},
        "bottleneck": loop.row["bottleneck"],
        "machine": machine(loop.system.device),
    }
    loop.close()
    return found


def cpu_seconds(loop: Any) -> dict[str, float]:
    """CPU seconds so far of the learner's thread, the actor's, the device driver's, and the rest: the emulators'."""
    known = {os.getpid(): "learner", getattr(getattr(loop, "_thread", None), "native_id", -1): "actor"}
    ticks, found = os.sysconf("SC_CLK_TCK"), {"learner": 0.0, "actor": 0.0, "driver": 0.0, "emulators": 0.0}
    for task in Path("/proc/self/task").iterdir():
        name, _, fields = (task / "stat").read_text().rpartition(")")
        kind = known.get(int(task.name), "driver" if "cuda" in name else "emulators")
        found[kind] += sum(map(int, fields.split()[11:13])) / ticks
    return found


def emulation(envs: list[Any], seconds: float) -> float:
    """Steps/s of environments that run already, with random actions, each sent again as soon as it is there."""
    rng = np.random.default_rng(0)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for env in envs:
            count = len(env.recv().obs)
            env.send(rng.integers(0, env.spec.num_actions, count))
            done += count
    return done / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="casa")
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--envs", type=int, nargs="*", default=[])
    parser.add_argument("--batch", type=int, nargs="*", default=[0], help="environments served together; 0: half")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--point", action="store_true", help="measure one point in this process")
    own, _, rest = " ".join(sys.argv[1:]).partition(" -- ")
    options, flags = parser.parse_args(own.split()), rest.split()
    if options.point:
        print(json.dumps(point(options, flags)))
        return
    console, records = Console(width=120), []
    base = [f"--recipe={options.recipe}", "--env=Breakout", *flags]
    points = [(count, None, batch) for count in options.cores for batch in options.batch]
    points += [(None, count, batch) for count in options.envs for batch in options.batch]
    for cores, envs, batch in points or [(None, None, batch) for batch in options.batch]:
        command = [sys.executable, __file__, "--point", f"--seconds={options.seconds}"]
        command += [f"--cores={cores}"] if cores else []
        command += ["--", *base, f"--env.batch={batch}"] + ([f"--env.num-envs={envs}"] if envs else [])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            console.print(f"{command} failed:\n{done.stderr[-2000:]}", highlight=False)
            continue
        records.append(json.loads(done.stdout.strip().splitlines()[-1]))
        console.print({name: value for name, value in records[-1].items() if name != "machine"}, highlight=False)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    table = Table(title=f"{options.recipe}: steps/s")
    for column in ("cores", "environments", "batch", "emulation alone", "end to end", "ratio"):
        table.add_column(column, justify="right")
    for r in records:
        rates = (f"{median(r[name]):,.0f}" for name in ("emulation", "end_to_end"))
        table.add_row(str(r["cores"]), str(r["envs"]), str(r["batch"]), *rates, f"{r['ratio']:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
