"""A long run's curves over frames, beside published scores at equal frames, as a picture.

    python benchmarks/long_run.py results/h200/train-casa.jsonl --picture casa.png      # needs matplotlib
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from casa import atari57

PUBLISHED: dict[str, dict[float, float]] = {
    "PPO, CleanRL: no sticky actions, 4 actions": {40: 430.09},
    "PPO, DreamerV3's repository: sticky": {10: 49.77, 40: 193.67, 100: 276.15, 200: 302.45},
    "DQN, Dopamine: sticky, 4 actions": {10: 51.94, 40: 99.80, 100: 145.57, 200: 199.39},
    "Rainbow, Dopamine: sticky, 4 actions": {10: 43.83, 40: 49.71, 100: 60.88, 200: 121.98},
    "IMPALA, Cleanba: sticky": {200: 482.12},
    "CASA, the paper: no sticky actions": {200: 624.3},
}
"""Breakout: million frames -> mean score, as published with each implementation, protocols as named."""


def load(path: Path) -> list[dict[str, Any]]:
    """The rows that have a return."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["return"] is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="metrics.jsonl of runs on Breakout")
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--evals", type=Path, nargs="*", default=[], help="what `casa eval` wrote about those runs")
    parser.add_argument("--picture", type=Path, default=Path("docs/h200.png"))
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 5), layout="constrained")
    for i, path in enumerate(options.runs):
        rows, name = load(path), options.names[i] if i < len(options.names) else path.stem
        for panel, field in zip(axes, ("return", "explained_variance", "entropy"), strict=True):
            seen = [row for row in rows if field in row]
            if seen:
                x, y = [row["frames"] / 1e6 for row in seen], [row[field] for row in seen]
                panel.plot(x, y, color=f"C{i}", label=name)
    for path in options.evals:
        found = json.loads(path.read_text(encoding="utf-8"))
        for mode in found["modes"].values():
            x, y, (low, high) = found["frames"] / 1e6, mode["mean"], mode["interval"]
            axes[0].errorbar(x, y, [[y - low], [high - y]], fmt="k*", markersize=7, linewidth=1)
            side = "bottom" if mode["policy"].startswith("argmax") else "top"
            axes[0].annotate(f"  {mode['policy']}: {y:.0f}", (x, y), ha="left", va=side, fontsize=7)
    right = axes[0].get_xlim()[1]
    for i, (name, points) in enumerate(PUBLISHED.items(), len(options.runs)):
        shown = {x: y for x, y in points.items() if x <= 1.1 * right}
        if shown:
            axes[0].plot(list(shown), list(shown.values()), "o", markersize=4, color=f"C{i}", label=name)
    axes[0].axhline(atari57.reference("Breakout").random, color="gray", linestyle=":", label="random play")
    axes[0].set(title="Breakout: mean return of the last 100 episodes", ylabel="return", yscale="log", ylim=(0.5, 1000))
    axes[1].set(title="share of the targets' variance that V explains", ylim=(-0.1, 1))
    axes[2].set(title="entropy of the policy", ylabel="nats")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    for panel in axes:
        panel.set_xlabel("million frames")
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.picture, dpi=120)
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
