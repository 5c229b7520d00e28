"""Run a suite that is killed on the way: `python benchmarks/suite_kills.py --output FILE -- atari57 --dir DIR ...`.

The arguments after -- are those of `casa suite`. The command is started, ended by SIGKILL after a random time (every
second time together with its jobs, as by a power failure), started again, and in the end left to finish. Then it is
started once more, and must find nothing to do. Writes what happened to --output, after what is there. With
--then-minutes M it is stopped M minutes after the last kill instead, and continues another time with --kills 0.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path


def jobs_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def steps_in(directory: Path) -> dict[str, int]:
    """Run -> agent steps in its log."""
    found = {}
    for file in sorted(directory.glob("runs/*/*/seed-*/metrics.jsonl")):
        lines = file.read_bytes().split(b"\n")[:-1]
        found[str(file.parent.relative_to(directory / "runs"))] = json.loads(lines[-1])["step"] if lines else 0
    return found


def written(directory: Path) -> dict[str, float]:
    """File of a run -> when it was written."""
    names = ("metrics.jsonl", "eval-suite.json")
    return {str(file): file.stat().st_mtime for name in names for file in directory.glob(f"runs/*/*/seed-*/{name}")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--between", type=float, nargs=2, default=(45.0, 75.0), help="seconds until a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--then-minutes", type=float, default=0.0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    rest = [word for word in args.rest if word != "--"]
    directory = Path(rest[rest.index("--dir") + 1])
    command = [sys.executable, "-m", "casa", "suite", *rest]
    rng = random.Random(args.seed)
    events = json.loads(args.output.read_text())["events"] if args.output.exists() else []
    for kill in range(args.kills):
        suite = subprocess.Popen(command)
        wait = rng.uniform(*args.between)
        time.sleep(wait)
        jobs = jobs_of(suite.pid)
        together = kill % 2 == 1
        for pid in [suite.pid, *(jobs if together else [])]:
            os.kill(pid, 9)
        suite.wait()
        event = {"killed_after": round(wait, 1), "jobs": len(jobs), "jobs_killed": together}
        events.append({**event, "steps": steps_in(directory)})
        print(json.dumps(events[-1]), flush=True)
    began = time.time()
    limit = ["--minutes", str(args.then_minutes)] if args.then_minutes else []
    done = subprocess.run([*command, *limit], check=False)
    seconds = round(time.time() - began, 1)
    ended = "stopped_after" if args.then_minutes else "finished_in"
    events.append({ended: seconds, "status": done.returncode, "steps": steps_in(directory)})

    def save() -> None:
        asked = {"command": ["casa", "suite", *rest], "events": events}
        args.output.write_text(json.dumps(asked, indent=1) + "\n")

    save()
    if args.then_minutes:
        return
    before = written(directory)
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    repeated = written(directory) != before
    events.append({"again": again.stdout.splitlines()[1], "status": again.returncode, "repeated": repeated})
    save()
    print(json.dumps(events[-1]))
    assert done.returncode == 0 and again.returncode == 0 and not events[-1]["repeated"]


if __name__ == "__main__":
    main()
