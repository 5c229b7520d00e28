"""Tests 4 to 6: locks, memory, and every command in every state of a run directory."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import time
from pathlib import Path

from fault_tests.lab import TRACEBACK, Lab, newest, rows, steps_of, train, wait_until


def locks(lab: Lab) -> None:
    """One process per run: a second one is refused by name, a killed one does not block, nor do its workers."""
    run = lab.new("run")
    with lab.start(*train(run, env__vectorization="async")) as process:
        wait_until(lambda: newest(run) >= 0 and bool(rows(run)), process)
        for argv in (train(run), ["resume", run]):
            assert f"in use by process {process.pid} on {socket.gethostname()}" in lab.refused(*argv).text
        assert process.poll() is None
        process.kill()  # the process alone: its workers are left
        process.wait()
        began = time.monotonic()
        done = lab.casa("resume", run, "--steps", steps_of(run) + 300)
        note = f"was left by process {process.pid}, which was killed"
        assert done.status == 0 and note in done.text, done.text[-500:]
        left = [pid for pid in os.listdir("/proc") if pid.isdecimal() and in_group(int(pid), process.pid)]
        assert not left, f"workers of the killed process are left: {left}"
        lab.fact(f"resumed {time.monotonic() - began:.0f} s after the kill")
    # Two that start at the same moment: one wins.
    both = lab.new("both")
    with lab.start(*train(both, 300)) as one, lab.start(*train(both, 300)) as other:
        statuses = sorted((one.wait(60), other.wait(60)))
        assert statuses == [0, 2], statuses


def in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def memory(lab: Lab) -> None:
    """Memory does not grow: the last third of a run needs no more than the second, within 2%."""
    run = lab.new("run")
    with lab.start(*train(run, checkpoint__every_steps=500, log__every_steps=40)) as process:
        wait_until(lambda: len(rows(run)) > 60, process, seconds=200)
        time.sleep(20 if lab.quick else 60)
        process.terminate()
        process.communicate(timeout=60)
    sizes = [row["rss_bytes"] / 2**20 for row in rows(run)]
    third = len(sizes) // 3
    before, after = (statistics.median(part) for part in (sizes[third : 2 * third], sizes[2 * third :]))
    lab.fact(f"{before:.1f} MiB, then {after:.1f} MiB after {steps_of(run):,} steps")
    assert after < 1.02 * before + 1, f"{before:.1f} MiB grew to {after:.1f} MiB"


def states(lab: Lab) -> None:
    """Every command in every state of a directory: it works or is refused in one sentence, and nothing is lost."""
    whole = lab.new("whole")
    assert lab.casa(*train(whole, 1_000)).status == 0
    folders = sorted((whole / "checkpoints").glob("step-*"))
    last = folders[-1]

    def damage(run: Path) -> None:
        file = run / "checkpoints" / last.name / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[lab.rng.randrange(len(data))] ^= 1 << lab.rng.randrange(8)
        file.write_bytes(data)

    def damage_all(run: Path) -> None:
        for folder in (run / "checkpoints").glob("step-*"):
            (folder / "model.safetensors").write_bytes(b"")

    def torn(run: Path) -> None:
        for name in ("metrics.jsonl", "episodes.jsonl"):
            data = (run / name).read_bytes()
            (run / name).write_bytes(data[: -lab.rng.randrange(2, 200)])

    # state -> (how it is made, status of resume, status of eval)
    made = {
        "missing": (lambda run: shutil.rmtree(run), 2, 2),
        "empty": (lambda run: (shutil.rmtree(run), run.mkdir()), 2, 2),
        "finished": (lambda run: None, 0, 0),
        "newest damaged": (damage, 0, 0),
        "all damaged": (damage_all, 2, 2),
        "no checkpoint": (lambda run: shutil.rmtree(run / "checkpoints"), 2, 2),
        "no config": (lambda run: (run / "config.yaml").unlink(), 0, 0),
        "no logs": (lambda run: [(run / f"{name}.jsonl").unlink() for name in ("metrics", "episodes")], 0, 0),
        "torn logs": (torn, 0, 0),
        "half a checkpoint": (lambda run: (run / "checkpoints" / last.name / "manifest.json").unlink(), 0, 0),
        "a file": (lambda run: (shutil.rmtree(run), run.write_text("")), 2, 2),
    }
    names = lab.rng.sample(list(made), 5) if not lab.quick else ["newest damaged"]
    for name in names:
        make, resumed, evaluated = made[name]
        run = lab.new(name)
        shutil.copytree(whole, run)
        make(run)
        done = lab.casa("resume", run, "--steps", 1_400, "--lr", "1e-4")
        assert done.status == resumed and TRACEBACK not in done.err, f"{name}: resume {done.status}: {done.err[-300:]}"
        if resumed == 0:
            assert newest(run) >= 1_400, name
        done = lab.casa("eval", run, "--episodes", 1)
        assert done.status == evaluated and TRACEBACK not in done.err, f"{name}: eval {done.status}: {done.err[-300:]}"
    lab.fact(f"{len(names)} states, 2 commands each")
