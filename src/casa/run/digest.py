"""What a run directory tells a report: its configuration, metrics, evaluations and videos, as plain data.

Nothing is imported or executed that the run names, and a damaged file is left out: a report never needs trust.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from casa.config.safe_yaml import load_plain
from casa.errors import UserError
from casa.page.report import VIDEO_BYTES, RunData, report_page
from casa.run import durable
from casa.run.jsonl import read_jsonl
from casa.run.rundir import read_config

REPORT = "report.html"
LARGEST_EVALUATION = 2**24
"""Bytes; an evaluation of 1,000 episodes has about 100,000."""


def write_report(runs: Sequence[Path], to: Path) -> Path:
    """Write the report of `runs` as one HTML file; returns its path."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(to, report_page([digest(run) for run in runs], now()).encode())
    except OSError as error:
        raise UserError(f"cannot write the report {to}: {error.strerror or error}") from error
    return to


def digest(run: Path) -> RunData:
    """The data of one run; UserError if it has no metrics.jsonl."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged line is skipped
        rows = list(read_jsonl(run / "metrics.jsonl"))
    return RunData(run.resolve().name, _config(run), rows, _evaluations(run), _videos(run))


def now() -> str:
    """The local time, to the minute."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _config(run: Path) -> dict[str, Any]:
    try:
        found = load_plain(read_config(run / "config.yaml"))
    except (UserError, ValueError):
        return {}
    return dict(_flat(found)) if isinstance(found, dict) else {}


def _flat(nested: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _evaluations(run: Path) -> list[dict[str, Any]]:
    """One row for each policy in each eval-*.json, by step."""
    rows = []
    for file in sorted(run.glob("eval-*.json")):
        try:
            found = json.loads(durable.read_plain(file, LARGEST_EVALUATION))
            for mode, result in found["modes"].items():
                tau = "" if found.get("tau") is None else f", τ {found['tau']:g}"
                row = {"step": int(found["step"]), "mode": f"{mode}{tau}", "episodes": found["episodes"]}
                rows.append(row | {name: result.get(name) for name in ("mean", "interval", "hns", "saber")})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return sorted(rows, key=lambda row: row["step"])


def _videos(run: Path) -> dict[str, bytes | None]:
    """The MP4 files in RUN/videos, the newest first; those too large for a report without their content."""
    found = [file for file in (run / "videos").glob("*.mp4") if file.is_file() and not file.is_symlink()]
    files = sorted(found, key=lambda file: file.stat().st_mtime, reverse=True)
    return {file.name: file.read_bytes() if file.stat().st_size <= VIDEO_BYTES else None for file in files}
