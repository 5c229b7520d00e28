"""Soak test: run `casa train` as a subprocess for some minutes, and measure whether its memory grows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from casa.bench.stages import FOREVER
from casa.config.fields import RunConfig
from casa.config.load import to_yaml
from casa.errors import UserError

EVERY = 1.0
"""Seconds between readings."""
MIB = 2**20


def slope(seconds: list[float], rss_bytes: list[float]) -> float:
    """MiB per minute: the slope b of the least-squares line rss ≈ a + b t."""
    t, rss = np.array(seconds) / 60, np.array(rss_bytes) / MIB
    t = t - t.mean()
    return float((t * (rss - rss.mean())).sum() / max((t * t).sum(), 1e-12))


def soak(config: RunConfig, minutes: float, tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Train in a subprocess for `minutes` after its first row of metrics, and fit its resident memory over time.

    The fit starts after the warm-up: a fifth of the time, or longer if the replay buffer is full only later.
    """
    if not Path("/proc/self/statm").exists():
        raise UserError("--soak reads resident memory from /proc, which this system does not have; use 0")
    with tempfile.TemporaryDirectory(prefix="casa-soak-") as name:
        folder = Path(name)
        run = folder / "run"
        config = replace(config, steps=FOREVER, run_dir=str(run))
        file = folder / "config.yaml"
        file.write_text(to_yaml(config), encoding="utf-8")
        command = [sys.executable, "-m", "casa", "train", "--config", str(file)]
        with (folder / "output.txt").open("w", encoding="utf-8") as output:
            child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                seconds, rss = _watch(child, run / "metrics.jsonl", 60 * minutes, tell)
            finally:
                child.terminate()  # it saves and exits
                child.wait(60)
        if not seconds:
            tail = (folder / "output.txt").read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise UserError(f"the run that --soak watches ended early: {' '.join(tail)}")
        rows = _rows(run / "metrics.jsonl")
    return {**fit(seconds, rss, _filled(config, rows)), "steps": rows[-1]["step"] if rows else 0}


def fit(seconds: list[float], rss: list[float], filled: float | None) -> dict[str, Any]:
    """The slope after the warm-up; `filled` is the second at which the replay buffer was full, None if never."""
    whole = seconds[-1]
    warm_up = max(whole / 5, filled if filled is not None and filled < 0.8 * whole else 0.0)
    kept = [i for i, t in enumerate(seconds) if t >= warm_up]
    return {
        "minutes": whole / 60,
        "warm_up_minutes": warm_up / 60,
        "replay_was_full": filled is not None and filled <= warm_up,
        "slope_mib_per_minute": slope([seconds[i] for i in kept], [rss[i] for i in kept]),
        "first_mib": rss[kept[0]] / MIB,
        "last_mib": rss[-1] / MIB,
        "peak_mib": max(rss) / MIB,
        "seconds": seconds,
        "rss_mib": [x / MIB for x in rss],
    }


def _watch(
    child: subprocess.Popen[bytes], metrics: Path, limit: float, tell: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """(seconds, resident bytes), read once a second from the first row of metrics until `limit`.

    Both are empty if the child exits early.
    """
    statm = Path(f"/proc/{child.pid}/statm")
    while child.poll() is None and not _rows(metrics):
        time.sleep(0.1)
    began = time.perf_counter()
    seconds: list[float] = []
    rss: list[float] = []
    while child.poll() is None and (not seconds or seconds[-1] < limit):
        seconds.append(time.perf_counter() - began)
        rss.append(float(statm.read_text(encoding="ascii").split()[1]) * 4096)
        tell(f"{seconds[-1] / 60:.1f} of {limit / 60:.1f} minutes, {rss[-1] / MIB:,.0f} MiB")
        time.sleep(min(EVERY, limit / 10))
    return (seconds, rss) if child.poll() is None else ([], [])


def _rows(metrics: Path) -> list[dict[str, Any]]:
    if not metrics.exists():
        return []
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _filled(config: RunConfig, rows: list[dict[str, Any]]) -> float | None:
    """Seconds from the first row of metrics to the first row with a full replay buffer; None if never."""
    slots = config.data.replay_frames if config.data.replays else 0
    full = [row["seconds"] - rows[0]["seconds"] for row in rows if row["step"] >= slots]
    return full[0] if full else None
