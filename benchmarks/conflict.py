"""What measuring conflict while training costs: the share of a run's time, at the default of every 100 learner steps.

    python benchmarks/conflict.py                                      # prints a table, writes results/conflict.json
    python benchmarks/conflict.py --device cuda --cases casa:Breakout:gpu --rounds 30 --out results/h200/conflict.json

Each case is one run, RECIPE:ENVIRONMENT:PRESET, in the loop that `casa train` would use. "measuring" is the share of
the wall time that the learner's thread spends measuring: an upper bound of the overhead where acting goes on meanwhile.
"cpu" is the share of the process's CPU time, which does not depend on how busy the machine is.
"slower" compares windows of 100 learner steps with and without measuring, in turns, and is noisy on a busy machine.
Six measurements before the first window pay for compilation and the capture of the CUDA graph.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from casa.config.load import make_config
from casa.engines.build import build_system
from casa.engines.loops import LOOPS
from casa.engines.resolve import GROUPS, resolve_machine
from casa.runtime.machine import machine
from casa.runtime.resources import pick_device
from casa.runtime.threads import prepare

CASES = (
    "ppo-casa:Breakout:paper",
    "ppo:Breakout:laptop",
    "ppo-casa:Breakout:laptop",
    "r2d2-casa:Breakout:laptop",
    "casa:Breakout:laptop",
    "casa:CartPole-v1:classic",
    "ppo-casa:CartPole-v1:classic",
)
WARM_UP, WARM_UP_UPDATES = 6, 20
"""Measurements and learner steps before anything is timed."""


def measure(case, seconds, rounds, device, every):
    recipe, env, preset = case.split(":")
    settings = {"recipe": recipe, "env": env, "preset": preset, "steps": 10**12, "device": device}
    settings |= {"log.diagnostics_every": every, "data.min_fill": 1000}
    config = resolve_machine(make_config(settings))
    prepare(config.mode, pick_device(config.device))
    system = build_system(config, GROUPS[config.mode])
    on, off = system.config, replace(system.config, log=replace(system.config.log, diagnostics_every=0))
    learner = system.learner
    sequences, conflict, step = learner.conflict.sequences, learner.conflict, learner.step
    spent, learning = [], []

    def timed(function, into):
        def call(*args):
            began, cpu = time.perf_counter(), time.thread_time()
            found = function(*args)
            into.append((time.perf_counter() - began, time.thread_time() - cpu))
            return found

        return call

    def first_step(batch, *args):
        for _ in range(WARM_UP):  # on CUDA the measurement becomes a graph at its fourth call
            conflict(batch)
        learner.step = timed(step, learning)
        return step(batch, *args)

    learner.conflict, learner.step = timed(conflict, spent), first_step
    system.config = off
    system.begin()
    loop = iter(LOOPS[config.mode](system))
    while learner.steps < WARM_UP_UPDATES:
        next(loop)
    learning.clear()
    rates = {True: [], False: []}
    measuring_seconds = measuring_cpu = calls = total = total_cpu = 0.0
    began = time.perf_counter()
    while len(rates[True]) < rounds and (time.perf_counter() - began < seconds or not rates[True]):
        for measuring in (True, False):
            system.config = on if measuring else off
            spent.clear()
            mark, cpu, steps, updates = time.perf_counter(), time.process_time(), system.steps, learner.steps
            while learner.steps - updates < every:
                next(loop)
            wall, cpu = time.perf_counter() - mark, time.process_time() - cpu
            rates[measuring].append((system.steps - steps) / wall)
            if measuring:
                calls, total, total_cpu = calls + len(spent), total + wall, total_cpu + cpu
                measuring_seconds += sum(seconds for seconds, _ in spent)
                measuring_cpu += sum(cpu for _, cpu in spent)
    loop.close()
    system.close()
    with_it, without = (statistics.median(rates[key]) for key in (True, False))
    return {
        "case": case,
        "mode": config.mode,
        "sequences": f"{sequences} of {config.data.batch}",
        "measurements": calls,
        "measuring_share": measuring_seconds / total,
        "cpu_share": measuring_cpu / total_cpu,
        "slower": 1 - with_it / without,
        "measurement_ms": 1e3 * measuring_seconds / calls,
        "learner_step_ms": 1e3 * statistics.mean(seconds for seconds, _ in learning),
        "steps_per_second": without,
        "windows": {"with": rates[True], "without": rates[False]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="RECIPE:ENVIRONMENT:PRESET")
    parser.add_argument("--seconds", type=float, default=120.0, help="per case, at most, without the warm-up")
    parser.add_argument("--rounds", type=int, default=10, help="windows with and without measuring, per case")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/conflict.json"))
    options = parser.parse_args()
    table = Table(title=f"conflict measured every {options.every} learner steps")
    for column in ("run", "loop", "sequences", "measuring", "cpu", "slower", "measurement", "learner step", "steps/s"):
        table.add_column(column, justify="left" if column == "run" else "right")
    found = []
    for case in options.cases:
        row = measure(case, options.seconds, options.rounds, options.device, options.every)
        found.append(row)
        print({key: value for key, value in row.items() if key != "windows"}, flush=True)
        table.add_row(
            case,
            row["mode"],
            row["sequences"],
            f"{100 * row['measuring_share']:.2f}%",
            f"{100 * row['cpu_share']:.2f}%",
            f"{100 * row['slower']:.1f}%",
            f"{row['measurement_ms']:.1f} ms",
            f"{row['learner_step_ms']:.1f} ms",
            f"{row['steps_per_second']:,.0f}",
        )
    Console(width=130).print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(torch.device(options.device)), "every": options.every, "load_after": os.getloadavg()[0]}
    options.out.write_text(json.dumps({**about, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
