"""Tests 1 to 3: kill -9 at random moments and during a save, and exact resume."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import torch

from casa.run import checkpoint
from fault_tests.lab import Lab, check_logs, holder, newest, remove, rows, train, wait_until

CLOCK = ("seconds", "steps_per_second", "rss_bytes", "bottleneck")


def kill_at_random(lab: Lab) -> None:
    """kill -9 at random moments, of the process or its group: the run goes on from a whole checkpoint."""
    kills = 2 if lab.quick else 5
    run = lab.new("run")
    argv = train(run, 1_000_000, mode=lab.rng.choice(["sync", "async"]), env__vectorization=vectorization(lab))
    last = kill_often(lab, run, argv, kills)
    finish(lab, run, last)
    lab.fact(f"{kills} kills, {last:,} steps kept")


def kill_often(lab: Lab, run: Path, argv: list[str], kills: int) -> int:
    """Start, kill, resume, kill, ...; returns the step of the newest checkpoint."""
    last, first = -1, argv
    for kill in range(kills):
        last = kill_once(lab, run, argv, last, late=kill == kills - 1)
        argv = ["resume", str(run)]
        if last < 0:  # before its first checkpoint: there is nothing to resume
            remove(run)
            argv = first
    return last


def vectorization(lab: Lab) -> str:
    return lab.rng.choice(["sync", "async"])


def kill_once(lab: Lab, run: Path, argv: list[str], last: int, late: bool) -> int:
    """Start, kill at any moment; returns the step of the newest checkpoint, -1 if none; it must be >= `last`.

    Unless `late`, one kill of three comes in the first two seconds; the others come after a new checkpoint.
    """
    with lab.start(*argv) as process:
        wait_until(lambda: holder(run) == process.pid, process)
        if late or lab.rng.random() < 2 / 3:
            wait_until(lambda: newest(run) > last, process)
        time.sleep(lab.rng.uniform(0, 2))
        before = newest(run)
        if lab.rng.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
    after = newest(run)
    assert after >= before >= last, f"checkpoint of step {before} was lost, the newest is that of {after}"
    return after


def finish(lab: Lab, run: Path, last: int) -> None:
    """Resume to an end a little later, and check everything that the run has written."""
    done = lab.casa("resume", run, "--steps", last + 400)
    assert done.status == 0, done.err[-300:]
    assert f"resumed at {last:,} steps" in done.text, done.text[:500]
    assert newest(run) >= last + 400
    check_logs(run)
    leftovers = [path.name for path in (run / "checkpoints").glob(".tmp-*")]
    assert not leftovers, leftovers


def kill_in_save(lab: Lab) -> None:
    """kill -9 while a checkpoint is being written: the one before it is whole, and the rest is cleaned up."""
    kills = 2 if lab.quick else 4
    run = lab.new("run")
    # A wide network takes long to write.
    argv = train(run, 1_000_000, net__hidden=700, checkpoint__every_steps=100)
    last, inside = 0, 0
    for _ in range(kills):
        with lab.start(*argv) as process:
            wait_until(lambda last=last: newest(run) >= last and bool(rows(run)), process)
            time.sleep(lab.rng.uniform(0, 0.5))
            before = newest(run)
            wait_until(lambda: any((run / "checkpoints").glob(".tmp-*")), process)
            time.sleep(lab.rng.uniform(0, 0.01))
            process.kill()
            process.wait()
        inside += any((run / "checkpoints").glob(".tmp-*"))
        after = newest(run)
        assert after >= before >= last
        last, argv = after, ["resume", str(run)]
    finish(lab, run, last)
    assert inside or lab.quick, "no kill came during a save"
    lab.fact(f"{kills} kills, {inside} in the middle of a save")


def exact_resume(lab: Lab) -> None:
    """With checkpoint.exact, a run that was killed and resumed is equal to the bit to one that was not."""
    settings = {"mode": "sync", "checkpoint__exact": "", "seed": lab.rng.randrange(1000)}
    words = {}
    for name in ("whole", "killed"):
        argv = train(lab.home / name, 3_000, **settings)
        argv.remove("")
        words[name] = argv
    done = lab.casa(*words["whole"])
    assert done.status == 0, done.err[-300:]
    run, argv, kills = lab.home / "killed", words["killed"], 0
    for _ in range(1 if lab.quick else 2):
        with lab.start(*argv) as process:
            wait_until(lambda: newest(run) >= 0, process)
            aim = lab.rng.uniform(0, 1.5)
            end = time.monotonic() + aim
            while time.monotonic() < end and process.poll() is None:
                time.sleep(0.01)
            kills += process.poll() is None
            process.kill()
        argv = ["resume", str(run)]
    if newest(run) < 3_000:
        done = lab.casa("resume", run)
        assert done.status == 0, done.err[-300:]
    different = differences(lab.home / "whole", run)
    assert not different, different
    lab.fact(f"{kills} kills, equal to the bit")


def differences(one: Path, other: Path) -> list[str]:
    """Names of what differs between the last checkpoints and the logs of two runs."""
    a, b = checkpoint.load(one), checkpoint.load(other)
    left, right = tensors(a.state), tensors(b.state)
    found = [name for name in left.keys() | right.keys() if not equal(left.get(name), right.get(name))]
    found += [f"meta/{key}" for key in a.meta if key not in ("seconds", "config") and a.meta[key] != b.meta[key]]
    for name in ("metrics.jsonl", "episodes.jsonl"):
        logs = [
            [{k: v for k, v in row.items() if k not in CLOCK and not re.match("time_", k)} for row in rows(run, name)]
            for run in (one, other)
        ]
        found += [] if logs[0] == logs[1] else [name]
    return found


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is not None and b is not None and torch.equal(a, b)


def tensors(state: object, prefix: str = "") -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, (list, tuple)) else ()
    return {name: x for key, value in items for name, x in tensors(value, f"{prefix}/{key}").items()}


def soak(lab: Lab, minutes: float) -> None:
    """The first test without an end: kills until the time is over, in new runs of every kind, one after the other."""
    end, kills, runs = time.monotonic() + 60 * minutes, 0, 0
    kinds = [
        {"mode": "sync"},
        {"mode": "async"},
        {"mode": "sync", "env__vectorization": "async"},
        {"recipe": "r2d2-casa", "mode": "sync", "data__min_fill": 200, "data__replay_frames": 4000},
        {"mode": "sync", "net__hidden": 500, "checkpoint__every_steps": 150},
    ]
    while time.monotonic() < end:
        run = lab.new("run")
        last = kill_often(lab, run, train(run, 1_000_000, seed=runs, **kinds[runs % len(kinds)]), 8)
        finish(lab, run, last)
        kills, runs = kills + 8, runs + 1
        print(f"{runs} runs, {kills} kills, nothing lost; the last run kept {last:,} steps", flush=True)
        remove(run)
    lab.fact(f"{runs} runs, {kills} kills")
