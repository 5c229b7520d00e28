"""The fault campaign: fifteen tests with real processes, signals and files, seeded, with a table at the end.

    python benchmarks/faults.py --seed 0 1 2            # all tests, three times: about 25 minutes on 2 cores
    python benchmarks/faults.py --only links signals    # some of them
    python benchmarks/faults.py --soak 60               # kill -9 at random moments for an hour

Results are written to results/faults.json. Linux only; the test of a full disk needs /dev/shm or root.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_tests import files, kills, runs, signals, strangers
from fault_tests.lab import Lab

TESTS: dict[str, Callable[[Lab], None]] = {
    "kill": kills.kill_at_random,
    "kill-in-save": kills.kill_in_save,
    "exact": kills.exact_resume,
    "locks": runs.locks,
    "memory": runs.memory,
    "states": runs.states,
    "links": files.links,
    "signals": signals.signals,
    "weights": strangers.weights,
    "environments": signals.environments,
    "stranger": strangers.stranger,
    "configuration": files.configuration,
    "brackets": files.brackets,
    "sizes": strangers.sizes,
    "disk": files.disk,
}


def run_one(name: str, test: Callable[[Lab], None], seed: int, quick: bool) -> dict[str, object]:
    """Run a test in a new directory; returns its result, ready for JSON."""
    with tempfile.TemporaryDirectory(prefix=f"casa-{name}-") as home:
        lab = Lab(Path(home), random.Random(f"{name}-{seed}"), quick)
        began, error = time.monotonic(), ""
        try:
            test(lab)
        except Exception as failure:
            place = traceback.extract_tb(failure.__traceback__)[-1]
            error = f"{type(failure).__name__}: {failure} ({Path(place.filename).name}, line {place.lineno})"
        return {
            "test": name,
            "seed": seed,
            "passed": not error,
            "promise": (test.__doc__ or "").strip(),
            "facts": lab.facts,
            "error": error,
            "seconds": round(time.monotonic() - began, 1),
        }


def machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return {"cpu": models[0] if models else "unknown", "cores": cores, "system": platform.platform()}


def table(results: list[dict[str, object]]) -> str:
    """One line per test: passed of all seeds, seconds, promise."""
    lines = []
    for name in dict.fromkeys(str(result["test"]) for result in results):
        mine = [result for result in results if result["test"] == name]
        passed = sum(bool(result["passed"]) for result in mine)
        verdict = "pass" if passed == len(mine) else "FAIL"
        seconds = sum(float(str(result["seconds"])) for result in mine) / len(mine)
        lines.append(f"{verdict}  {passed}/{len(mine)}  {name:<14}{seconds:6.0f} s  {mine[0]['promise']}")
        lines += [f"      seed {result['seed']}: {result['error']}" for result in mine if result["error"]]
    whole = {seed: [r for r in results if r["seed"] == seed] for seed in dict.fromkeys(r["seed"] for r in results)}
    for seed, mine in whole.items():
        lines.append(f"seed {seed}: {sum(bool(r['passed']) for r in mine)} of {len(mine)} tests passed")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=TESTS, default=list(TESTS), metavar="TEST")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, as in the tests of this repository")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES", help="only kill -9, for so long")
    parser.add_argument("--json", type=Path, default=Path(__file__).parents[1] / "results" / "faults.json")
    options = parser.parse_args()
    if options.soak:
        tests = {"soak": lambda lab: kills.soak(lab, options.soak)}
        tests["soak"].__doc__ = f"kill -9 at random moments for {options.soak:g} minutes: nothing is lost."
    else:
        tests = {name: TESTS[name] for name in options.only}
    results = []
    for seed in options.seed:
        for name, test in tests.items():
            results.append(run_one(name, test, seed, options.quick))
            result = results[-1]
            print(
                f"seed {seed}, {name}: {'pass' if result['passed'] else 'FAIL'}, {result['seconds']} s"
                f" {'; '.join(result['facts'])} {result['error']}",
                flush=True,
            )
    print("\n" + table(results))
    options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    print(f"wrote {options.json}")
    return 0 if all(result["passed"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
