"""Tests 7, 12, 13 and 15: links and FIFOs, a damaged configuration, paths with brackets, and the disk."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from casa.run import checkpoint
from fault_tests.lab import TRACEBACK, Lab, newest, rows, steps_of, train, wait_until

FILES = (".lock", "metrics.jsonl", "episodes.jsonl", "config.yaml")


def links(lab: Lab) -> None:
    """Links, FIFOs and devices in a run directory are refused at once, and what they point to is not touched."""
    whole = made(lab)
    other = lab.new("other")
    shutil.copytree(whole, other)
    before = content(other)
    thesis = lab.home / "thesis.tex"
    cases = [(name, kind) for name in FILES for kind in ("link", "dangling", "hard", "fifo")]
    cases.remove(("config.yaml", "hard"))  # it is replaced, not written to
    for name, kind in lab.rng.sample(cases, 2 if lab.quick else 6):
        run = lab.new("run")
        shutil.copytree(whole, run)
        thesis.write_text("forty pages")
        (run / name).unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(run / name)
        elif kind == "hard":
            os.link(thesis, run / name)
        else:
            (run / name).symlink_to(thesis if kind == "link" else lab.home / "new")
        lab.refused("resume", run, "--steps", 900, "--lr", "1e-4", seconds=60)
        assert thesis.read_text() == "forty pages" and not (lab.home / "new").exists(), f"{name}, {kind}"
        lab.fact(f"{name}: {kind}")
    run = lab.new("run")
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(other / "checkpoints")
    lab.refused("resume", run, "--steps", 900, "--lr", "1e-4")
    lab.refused(*train(run))
    assert content(other) == before, "another run was changed through a link"


def made(lab: Lab, steps: int = 400) -> Path:
    run = lab.new("whole")
    done = lab.casa(*train(run, steps))
    assert done.status == 0, done.err[-300:]
    return run


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def configuration(lab: Lab) -> None:
    """A damaged config.yaml is completed from the checkpoint or refused; it is never silently believed."""
    whole = made(lab)
    before = yaml.safe_load((whole / "config.yaml").read_text())
    text = (whole / "config.yaml").read_text()
    cut = text.index("\n", lab.rng.randrange(len(text) - 100)) + 1
    for name, damaged in {"empty": "", "cut": text[:cut], "missing": None}.items():
        run = lab.new(name)
        shutil.copytree(whole, run)
        (run / "config.yaml").unlink()
        if damaged is not None:
            (run / "config.yaml").write_text(damaged)
        done = lab.casa("resume", run, "--steps", 800, "--lr", "1e-4")
        after = yaml.safe_load((run / "config.yaml").read_text()) if (run / "config.yaml").exists() else None
        if done.status == 0:
            same = {**before, "steps": 800, "run_dir": str(run)}
            assert after == same and "taken from" in done.text, f"{name}: other hyperparameters"
        else:
            assert done.status == 2 and TRACEBACK not in done.err and after != before, done.err[-300:]
            assert (run / "config.yaml").read_text() == damaged, f"{name}: overwritten by a refusal"
    for name, damaged in {"changed": text.replace("discount: ", "discount: 0.5 #"), "garbage": "\0\1\2"}.items():
        run = lab.new(name)
        shutil.copytree(whole, run)
        (run / "config.yaml").write_text(damaged)
        if name == "changed":
            done = lab.casa("resume", run, "--steps", 800, "--lr", "1e-4")
            assert done.status == 0 and "agent.discount 0.5 (was " in done.text, done.text[-300:]
        else:
            lab.refused("resume", run, "--steps", 800, "--lr", "1e-4")
            assert (run / "config.yaml").read_text() == damaged


def brackets(lab: Lab) -> None:
    """Paths with brackets, quotes and colons: the run can be resumed with the command that it prints."""
    names = ["a[/red]x", "lr[seed1]", "it's a [bold]", ":smile: $HOME"]
    for name in lab.rng.sample(names, 1 if lab.quick else 2):
        run = lab.new(name)
        with lab.start(*train(run)) as process:
            wait_until(lambda run=run: bool(rows(run)), process)
            process.terminate()
            out, err = process.communicate(timeout=30)
        assert process.returncode == 143 and not err, err[-300:]
        command = shlex.split(out.split("continue with: casa ", 1)[1].splitlines()[0])
        done = lab.casa(*command, "--steps", newest(run) + 200)
        assert done.status == 0, f"{name}: {done.err[-300:]}"
        assert f"{run}/config.yaml" in done.out


def disk(lab: Lab) -> None:
    """A full disk ends the run in one sentence with its checkpoints whole; TensorBoard forgets what was rewound."""
    with small_disk(lab) as where:
        run = where / "run"
        done = lab.casa(*train(run, 1_000_000, log__every_steps=8, log__tensorboard="yes"), seconds=400)
        assert done.status == 2 and TRACEBACK not in done.err, done.err[-800:]
        assert (done.err.count("casa: ") == 1 and "No space left" in done.text + done.err) or "disk is full" in done.err
        kept = newest(run)
        assert kept > 0, "no checkpoint is left"
        for name in ("metrics.jsonl", "episodes.jsonl"):
            assert all(isinstance(row["step"], int) for row in rows(run, name))
        (where / "ballast").unlink()
        done = lab.casa("resume", run, "--steps", kept + 200)
        assert done.status == 0, done.err[-300:]
        lab.fact(f"full after {kept:,} steps")
        shown = points(run)
        assert shown == [row["step"] for row in rows(run)], "TensorBoard shows points that the run has rewound"
    # A kill also leaves points behind that are written again.
    run = lab.new("run")
    with lab.start(*train(run, log__every_steps=40, log__tensorboard="yes")) as process:
        wait_until(lambda: newest(run) > 0 and steps_of(run) > newest(run) + 100, process)
        process.kill()
    assert lab.casa("resume", run, "--steps", newest(run) + 400).status == 0
    assert points(run) == [row["step"] for row in rows(run)], "TensorBoard shows points that the run has rewound"
    # Places that are no runs, and locks of other machines.
    lab.refused("resume", "/")
    assert not Path("/.lock").exists(), "casa resume / left /.lock"
    (run / ".lock").write_text(json.dumps({"pid": 77, "host": "node17", "started": "2026-01-01T00:00:00+00:00"}))
    done = lab.casa("resume", run, "--steps", newest(run) + 200, "--lr", "1e-4")
    assert done.status == 0 and "process 77 on node17" in done.text and "killed" not in done.text, done.text[-300:]
    assert checkpoint.load(run).step == newest(run)


def points(run: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("play/episodes")]


@contextmanager
def small_disk(lab: Lab) -> Iterator[Path]:
    """A disk of 4 MiB, of which `ballast` takes all but 700 KiB; needs the right to mount."""
    where = lab.new("disk")
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)], check=True, capture_output=True)
    try:
        (where / "ballast").write_bytes(bytes(4 * 2**20 - 700 * 2**10))
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)
