"""The state of a run, read from its directory alone."""

from __future__ import annotations

import fcntl
import shutil
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from casa.errors import UserError
from casa.run import durable
from casa.run.jsonl import last_record


class State(Enum):
    """What has to be done with a run directory."""

    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"
    BUSY = "busy"
    """Another process holds it."""


def state_of(path: Path, steps: int) -> State:
    """FINISHED if its log reaches `steps`, also where only the logs were kept; UNFINISHED if it can be resumed."""
    if busy(path):
        return State.BUSY
    if last_row(path).get("step", -1) >= steps:
        return State.FINISHED
    if (path / "config.yaml").exists() and any((path / "checkpoints").glob("step-*")):
        return State.UNFINISHED
    return State.NEW


def busy(path: Path) -> bool:
    """Whether a process trains in this directory now."""
    try:
        with open(path / ".lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def last_row(path: Path) -> dict[str, Any]:
    """The last complete row of a run's metrics.jsonl; empty if there is none."""
    return last_record(path / "metrics.jsonl")


SETTINGS = "settings.yaml"
"""The settings that a run was started with, beside its complete config.yaml."""


def prepare(path: Path, settings: dict[str, Any]) -> None:
    """Make a new run's directory with its settings; what a run left that never saved a checkpoint is removed."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    durable.replace(path / SETTINGS, yaml.safe_dump(settings, sort_keys=True).encode())


def check_settings(path: Path, settings: dict[str, Any]) -> None:
    """UserError if the directory holds a run with other settings than planned."""
    file = path / SETTINGS
    try:
        before = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return
    now = yaml.safe_load(yaml.safe_dump(settings))
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise UserError(
                f"{path} holds a run with {name} {before.get(name)!r}, but {now.get(name)!r} is asked for; "
                f"ask for the same or choose another --dir"
            )
