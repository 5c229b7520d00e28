"""The report's size and the time until a browser has drawn it, and the picture of it in the README.

    python benchmarks/report.py measure        # ten runs of 5,000 rows -> results/report.json
    python benchmarks/report.py screenshot     # results/learning -> docs/assets/report.png

Both need Chromium and the extra `dev`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, sync_playwright

from casa.page.report import RunData, report_page
from casa.runtime.machine import machine

ROOT = Path(__file__).parents[1]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


def made_run(recipe: str, seed: int, rows: int = 5000, columns: int = 60) -> RunData:
    """A run with as many rows as 50 million steps have, and more columns than any run writes."""

    def row(i: int) -> dict[str, Any]:
        noise = {f"column_{c}": math.sin(i * (c + 1) * 0.01 + seed) * 1.2345678 for c in range(columns)}
        return {"step": 10_000 * i, "frames": 40_000 * i, "seconds": 9.87 * i, "return": math.log(i + 1), **noise}

    config = {"recipe": recipe, "env.id": "Breakout", "seed": seed}
    return RunData(f"{recipe}-{seed}", config, [row(i) for i in range(rows)])


def open_seconds(browser: Browser, file: Path) -> float:
    """Seconds from asking for the file until everything is drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    began = time.perf_counter()
    page.goto(file.as_uri())
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    seconds = time.perf_counter() - began
    page.close()
    return seconds


def measure(browser: Browser) -> None:
    runs = [made_run(recipe, seed) for recipe in ("casa", "ppo") for seed in range(5)]
    began = time.perf_counter()
    text = report_page(runs, "")
    built = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(text, encoding="utf-8")
        opened = [open_seconds(browser, file) for _ in range(7)]
        found = {
            "runs": len(runs),
            "rows_per_run": len(runs[0].rows),
            "columns": len(runs[0].rows[0]),
            "bytes": file.stat().st_size,
            "build_seconds": round(built, 3),
            "open_seconds": [round(x, 3) for x in opened],
            "open_seconds_median": round(statistics.median(opened), 3),
            "chromium": browser.version,
            "machine": machine(torch.device("cpu")),
        }
    (ROOT / "results" / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def screenshot(browser: Browser) -> None:
    runs = []
    for path in sorted((ROOT / "results" / "learning").glob("*-CartPole-v1-?.jsonl")):
        recipe, seed = path.stem.rpartition("-CartPole-v1-")[::2]
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        runs.append(RunData(path.stem, {"recipe": recipe, "env.id": "CartPole-v1", "seed": int(seed)}, rows))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(report_page(runs, "from results/learning"), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1180, "height": 1010}, device_scale_factor=1.25)
        page.goto(file.as_uri())
        box = page.locator("#sections figure canvas").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 40)
        page.wait_for_timeout(200)
        page.screenshot(path=ROOT / "docs" / "assets" / "report.png")


if __name__ == "__main__":
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        {"measure": measure, "screenshot": screenshot}[sys.argv[1]](chromium)
        chromium.close()
