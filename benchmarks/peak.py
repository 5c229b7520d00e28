"""How many floating-point operations a second one core does, and two at once: what no network can exceed.

    python benchmarks/peak.py        # 15 seconds; writes results/peak.json
"""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import torch

from casa.runtime.machine import machine

SIDE, SECONDS = 1024, 2.0


def peak(dtype: torch.dtype) -> float:
    """GFLOP/s = 2 side³ · products / time / 10⁹, of one thread."""
    torch.set_num_threads(1)
    x, y = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    x @ y
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        x @ y
        done += 1
    return 2 * SIDE**3 * done / (time.perf_counter() - began) / 1e9


def main() -> None:
    found = {"machine": machine(torch.device("cpu")), "side": SIDE}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for dtype in (torch.float32, torch.bfloat16):
            alone, both = pool.apply(peak, (dtype,)), pool.map(peak, (dtype, dtype), 1)
            found[str(dtype).removeprefix("torch.")] = {"one_core": alone, "two_at_once": both}
    Path("results/peak.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
