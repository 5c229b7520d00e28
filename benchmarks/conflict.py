"""What measuring conflict while training costs: the share of a run's time, at the default of every 100 learner steps.

    python benchmarks/conflict.py                                      # prints a table, writes results/conflict.json
    python benchmarks/conflict.py --device cuda --cases casa:Breakout:gpu --seconds 60 --out results/h200/conflict.json

Each case is one run, RECIPE:ENVIRONMENT:PRESET, in the loop that `casa train` would use. "measuring" is the share of
the wall time that the learner's thread spends measuring: an upper bound of the overhead where acting goes on meanwhile.
"slower" compares windows of 100 learner steps with and without measuring, in turns, and is noisy on a busy machine.
"""

import argparse
import json
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
WINDOW = 100


def measure(case, seconds, device, every):
    recipe, env, preset = case.split(":")
    settings = {"recipe": recipe, "env": env, "preset": preset, "steps": 10**12, "device": device}
    settings |= {"log.diagnostics_every": every, "data.min_fill": 1000}
    config = resolve_machine(make_config(settings))
    prepare(config.mode, pick_device(config.device))
    system = build_system(config, GROUPS[config.mode])
    on, off = system.config, replace(system.config, log=replace(system.config.log, diagnostics_every=0))
    spent, learning = [], []
    learner = system.learner
    sequences = learner.conflict.sequences

    def timed(function, into):
        def call(*args):
            began = time.perf_counter()
            found = function(*args)
            into.append(time.perf_counter() - began)
            return found

        return call

    learner.conflict, learner.step = timed(learner.conflict, spent), timed(learner.step, learning)
    system.begin()
    rates = {True: [], False: []}
    loop = iter(LOOPS[config.mode](system))
    measuring = False
    began = mark = time.perf_counter()
    warm, warmed = began + min(10.0, seconds / 3), False
    steps, updates = system.steps, learner.steps
    share_of = total = 0.0
    for _ in loop:
        now = time.perf_counter()
        if learner.steps - updates < WINDOW:
            continue
        if now > warm and warmed:
            rates[measuring].append((system.steps - steps) / (now - mark))
            if measuring:
                share_of, total = share_of + sum(spent), total + now - mark
        warmed = now > warm  # the first window after the warm-up started before it
        measuring = not measuring
        system.config = on if measuring else off
        spent.clear()
        mark, steps, updates = now, system.steps, learner.steps
        if now - began > seconds and min(map(len, rates.values())) >= 1:
            break
    loop.close()
    system.close()
    calls = share_of * every / (WINDOW * len(rates[True]))
    with_it, without = (statistics.median(rates[key]) for key in (True, False))
    return {
        "case": case,
        "mode": config.mode,
        "sequences": f"{sequences} of {config.data.batch}",
        "measuring_share": share_of / total,
        "slower": 1 - with_it / without,
        "measurement_ms": 1e3 * calls,
        "learner_step_ms": 1e3 * statistics.median(learning),
        "steps_per_second": without,
        "windows": {"with": rates[True], "without": rates[False]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="RECIPE:ENVIRONMENT:PRESET")
    parser.add_argument("--seconds", type=float, default=40.0, help="per case")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/conflict.json"))
    options = parser.parse_args()
    table = Table(title=f"conflict measured every {options.every} learner steps")
    for column in ("run", "loop", "sequences", "measuring", "slower", "measurement", "learner step", "steps/s"):
        table.add_column(column, justify="left" if column == "run" else "right")
    found = []
    for case in options.cases:
        row = measure(case, options.seconds, options.device, options.every)
        found.append(row)
        print({key: value for key, value in row.items() if key != "windows"}, flush=True)
        table.add_row(
            case,
            row["mode"],
            row["sequences"],
            f"{100 * row['measuring_share']:.2f}%",
            f"{100 * row['slower']:.1f}%",
            f"{row['measurement_ms']:.1f} ms",
            f"{row['learner_step_ms']:.1f} ms",
            f"{row['steps_per_second']:,.0f}",
        )
    Console(width=130).print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(torch.device(options.device)), "every": options.every, "seconds": options.seconds}
    options.out.write_text(json.dumps({**about, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
