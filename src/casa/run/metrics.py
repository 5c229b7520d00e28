"""Metrics of a run: mean scalars of the learner steps since the last report, recent returns, time per stage."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from casa import atari57
from casa.engines.loops import Loop
from casa.engines.system import System
from casa.learn.diagnostics import noise_scales
from casa.rollout.actor import Episode

RECENT = 100
"""Number of recent episodes in the mean return."""


class Meter:
    """Collects metrics between reports; each report is one row."""

    def __init__(self, system: System, loop: Loop) -> None:
        self.system, self.loop = system, loop
        self.returns: deque[float] = deque(maxlen=RECENT)
        self.lengths: deque[int] = deque(maxlen=RECENT)
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.began = self.last_time = time.perf_counter()
        self.last_steps = system.steps
        self.last_seconds = self._seconds()
        self.earlier = 0.0  # seconds trained before the run was resumed

    def add(self, episodes: Iterable[Episode], updates: Iterable[dict[str, float]]) -> None:
        """Add finished episodes and the scalars of learner steps."""
        for episode in episodes:
            self.returns.append(episode.score)
            self.lengths.append(episode.length)
        for scalars in updates:
            for name, value in scalars.items():
                self.sums[name] += value
            self.counts.update(scalars.keys())

    def state(self) -> dict[str, Any]:
        """Sums and counts collected for the next row, so that a resumed run reports the same row."""
        return {"sums": dict(self.sums), "counts": dict(self.counts)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.sums, self.counts = defaultdict(float, state["sums"]), Counter(state["counts"])

    def row(self) -> dict[str, Any]:
        """The means since the last row and the current counters; starts the next row."""
        system, now = self.system, time.perf_counter()
        elapsed = max(now - self.last_time, 1e-9)
        frames = system.steps * system.spec.frames_per_step
        row: dict[str, Any] = {
            "step": system.steps,
            "frames": frames,
            "seconds": self.earlier + now - self.began,
            "steps_per_second": (system.steps - self.last_steps) / elapsed,
            "episodes": system.episodes,
            "return": float(np.mean(self.returns)) if self.returns else None,
            "episode_length": float(np.mean(self.lengths)) if self.lengths else None,
            "learner_steps": system.learner.steps,
            "skipped": system.learner.skipped,
            **self._stages(elapsed),
            **system.stats(),
            "rss_bytes": rss_bytes(),
        }
        game = system.spec.atari_game
        if game is not None and game in atari57.GAMES and self.returns:
            row["hns"] = atari57.hns(game, row["return"])
        row.update({name: total / self.counts[name] for name, total in self.sums.items()})
        row.update(noise_scales(row))
        self.sums, self.counts = defaultdict(float), Counter()
        self.last_time, self.last_steps, self.last_seconds = now, system.steps, self._seconds()
        return row

    def _seconds(self) -> dict[str, float]:
        total = dict(self.loop.clock.seconds)
        for actor in self.system.actors:
            for stage, seconds in actor.clock.seconds.items():
                total[stage] = total.get(stage, 0.0) + seconds
        return total

    def _stages(self, elapsed: float) -> dict[str, Any]:
        """Fraction of time that each stage was busy, and the bottleneck: the stage that the others wait for."""
        now = self._seconds()
        shares = {stage: (now[stage] - self.last_seconds[stage]) / elapsed for stage in now}
        busy = {stage: share for stage, share in shares.items() if stage != "waiting"}
        learner_idle = shares["waiting"] > 0.2
        if learner_idle:
            busy.pop("learner")
        return {"bottleneck": max(busy, key=lambda stage: busy[stage]), **{f"time_{k}": v for k, v in shares.items()}}


def rss_bytes() -> int | None:
    """Resident memory of this process; None if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * 4096
