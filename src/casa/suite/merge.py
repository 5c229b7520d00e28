"""`casa suite merge`: the runs of other directories, of other machines perhaps, into one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from casa.errors import UserError
from casa.experiments.state import SETTINGS, busy
from casa.run import durable
from casa.suite import spec
from casa.suite.schedule import EVALUATION, alone

METRICS = "metrics.jsonl"


def merge(directory: Path, others: Sequence[Path], console: Console) -> None:
    """Copy the runs of `others` into `directory`. All is checked first: a conflict is a UserError and changes nothing.

    Of two copies of one run, the one that got further is kept. Two different runs of one recipe, environment and seed
    are a conflict.
    """
    if not others:
        raise UserError("casa suite merge needs DIR and at least one other directory: casa suite merge DIR OTHER")
    with alone(directory):
        suite: spec.Suite | None = spec.load(directory) if (directory / spec.FILE).exists() else None
        copies: dict[Path, Path] = {}  # place in `directory` -> where it comes from
        for other in others:
            if other.resolve() == directory.resolve():
                raise UserError(f"{other} is the directory to merge into; name the others only")
            found = spec.load(other)
            suite = found if suite is None else spec.joined(suite, found, str(directory), str(other))
            for run in sorted(file.parent for file in other.glob(f"runs/*/*/seed-*/{SETTINGS}")):
                if busy(run):
                    raise UserError(f"{run} is being trained; stop it, or wait for its end")
                to = directory / run.relative_to(other)
                if _is_newer(run, copies.get(to, to)):
                    copies[to] = run
        assert suite is not None  # there is at least one other
        for to, run in copies.items():
            _copy(run, to)
        spec.save(suite, directory)
    runs = "run" if len(copies) == 1 else "runs"
    text = f"{len(copies)} {runs} copied into {directory}; casa suite report {directory} makes the table"
    console.print(text, highlight=False, soft_wrap=True)


def _is_newer(run: Path, here: Path) -> bool:
    """Whether `run` goes further than what is `here`; UserError if neither continues the other."""
    if not here.exists():
        return True
    theirs, ours = (_read(path / SETTINGS) for path in (run, here))
    if theirs != ours:
        raise UserError(f"{run} and {here} have different settings ({SETTINGS}); nothing was merged")
    theirs, ours = (_read(path / METRICS) for path in (run, here))
    if theirs == ours:
        return (run / EVALUATION).exists() and not (here / EVALUATION).exists()
    if not theirs.startswith(ours) and not ours.startswith(theirs):
        what = "are different runs of the same recipe, environment and seed"
        raise UserError(f"{run} and {here} {what}; nothing was merged")
    return len(theirs) > len(ours)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _copy(run: Path, to: Path) -> None:
    """Copy beside the place first, then rename: after a kill the same command completes it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    beside, old = (to.with_name(f".{name}-{to.name}") for name in ("new", "old"))
    for left in (beside, old):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(run, beside, symlinks=True, ignore=shutil.ignore_patterns(".lock", "tensorboard"))
    if to.exists():
        os.rename(to, old)
    os.rename(beside, to)
    durable.sync_directory(to.parent)
    shutil.rmtree(old, ignore_errors=True)
