"""Steps/s end to end, beside emulation alone, by cores, by environments and by the size of the groups served.

    python benchmarks/scaling.py --recipe casa --cores 2 4 8 16 --envs 32 64 160 320 640 --out results/scaling.json

Cores are varied at the recipe's number of environments, environments at all cores. Each point is a process of its own,
which has the first so many cores. The environments of all are made at once, which takes longest; then the points warm
up and are measured in turns, for some rounds, while the others stand still. Emulation alone has the same environments,
served in the same groups, with random actions. Every flag of `casa train` that follows `--` is taken by every point.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from casa.cli import let_idle_threads_sleep


def point(options: argparse.Namespace, flags: list[str]) -> None:
    """One point in this process: makes its environments, then warms up and measures, once for each line it reads."""
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores[0]])
    let_idle_threads_sleep()  # as `casa train` does, before torch is loaded
    from casa.bench.stages import Emulation, EndToEnd
    from casa.config.load import load_config
    from casa.engines.resolve import pick_mode
    from casa.envs import make_env
    from casa.runtime.machine import machine

    config = load_config(flags)
    loop = EndToEnd(config, pick_mode(config), make_env)
    facts = {
        "recipe": config.recipe,
        "cores": len(os.sched_getaffinity(0)),
        "envs": config.env.num_envs,
        "group_size": loop.system.actors[0].group_size,
        "machine": machine(loop.system.device),
    }
    print(json.dumps(facts), flush=True)
    alone = Emulation(loop.system.actors)
    sys.stdin.readline()
    loop.warm_up(2.0)
    print("{}", flush=True)
    for _ in sys.stdin:
        before, start = cpu_seconds(loop.loop), time.perf_counter()
        speed = loop.measure(options.seconds)
        after, elapsed = cpu_seconds(loop.loop), time.perf_counter() - start
        shares = [name for name in loop.row if name.startswith("time_")]
        found = {
            "end_to_end": speed,
            "emulation": alone.measure(options.seconds),
            "busy_cores": {name: round((after[name] - before[name]) / elapsed, 3) for name in after},
            **{name: loop.row[name] for name in (*shares, "policy_lag", "bottleneck") if name in loop.row},
        }
        print(json.dumps(found), flush=True)
    loop.close()


def cpu_seconds(loop: Any) -> dict[str, float]:
    """CPU seconds so far of the learner's thread, the actor's, the device driver's, and the rest: the emulators'."""
    known = {os.getpid(): "learner", getattr(getattr(loop, "_thread", None), "native_id", -1): "actor"}
    ticks, found = os.sysconf("SC_CLK_TCK"), {"learner": 0.0, "actor": 0.0, "driver": 0.0, "emulators": 0.0}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, fields = (task / "stat").read_text().rpartition(")")
        except OSError:  # a thread that has just ended
            continue
        kind = known.get(int(task.name), "driver" if "cuda" in name else "emulators")
        found[kind] += sum(map(int, fields.split()[11:13])) / ticks
    return found


class Point:
    """A point's process; what it said so far."""

    def __init__(self, options: argparse.Namespace, cores: int | None, flags: list[str]) -> None:
        command = [sys.executable, __file__, "--point", f"--seconds={options.seconds}"]
        command += [f"--cores={cores}"] if cores else []
        self.command, pipe = [*command, "--", *flags], subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        self.found: dict[str, Any] = {}

    def hear(self) -> dict[str, Any] | None:
        """The next line of JSON that it prints; None: it has failed, and said why on its standard error."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        return None

    def go_on(self) -> dict[str, Any] | None:
        """Let it warm up, or measure one round."""
        assert self.process.stdin is not None
        try:
            print("go", file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return None
        return self.hear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="casa")
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--envs", type=int, nargs="*", default=[])
    parser.add_argument("--group-size", type=int, nargs="*", default=[0], help="environments served together; 0: half")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--point", action="store_true", help="one point in this process, driven by its input")
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    if options.point:
        point(options, flags)
        return
    console = Console(width=120)
    base = [f"--recipe={options.recipe}", "--env=Breakout", *flags]
    spread = [*product(options.cores, [None]), *product([None], options.envs)] or [(None, None)]
    points = [
        Point(options, cores, [*base, f"--env.group-size={size}", *([f"--env.num-envs={envs}"] if envs else [])])
        for (cores, envs), size in product(spread, options.group_size)
    ]
    console.print(f"making {len(points)} points", highlight=False)
    try:
        measure(points, options, console)
    finally:
        for each in points:
            each.process.kill()
            each.process.wait()
    show(options.recipe, [each.found for each in points if each.found.get("rounds")], console)


def measure(points: list[Point], options: argparse.Namespace, console: Console) -> None:
    """Every point's rounds, in turns; one that fails is left out from then on."""
    alive = list(points)

    def take(each: Point, answer: dict[str, Any] | None) -> dict[str, Any]:
        if answer is None:
            alive.remove(each)
            console.print(f"a point failed, see above: {' '.join(each.command)}", highlight=False)
        return answer or {}

    for each in points:
        each.found = take(each, each.hear())
    for each in list(alive):
        take(each, each.go_on())
    for i in range(options.rounds):
        for each in list(alive):
            found = take(each, each.go_on())
            if not found:
                continue
            each.found.setdefault("rounds", []).append(found)
            what = " ".join(f"{each.found[name]} {name}," for name in ("cores", "envs", "group_size"))
            console.print(f"round {i + 1} of {options.rounds}: {what} {found}", highlight=False)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps([one.found for one in alive], indent=1) + "\n", encoding="utf-8")


def show(recipe: str, records: list[dict[str, Any]], console: Console) -> None:
    """Medians over the rounds, as a table."""
    table = Table(title=f"{recipe}: steps/s")
    for column in ("cores", "environments", "group size", "emulation alone", "end to end", "ratio", "policy lag"):
        table.add_column(column, justify="right")
    for r in records:
        rounds = r["rounds"]
        rates = (f"{median(x[name] for x in rounds):,.0f}" for name in ("emulation", "end_to_end"))
        ratio = median(x["end_to_end"] / x["emulation"] for x in rounds)
        lag = median(x.get("policy_lag", 0.0) for x in rounds)
        facts = (str(r[name]) for name in ("cores", "envs", "group_size"))
        table.add_row(*facts, *rates, f"{ratio:.2f}", f"{lag:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
