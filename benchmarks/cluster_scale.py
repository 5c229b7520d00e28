"""Where the Ray engine stops scaling: the model of cluster_model.py with measured inputs, compared and then extended.

    python benchmarks/cluster_scale.py --out results/cluster-scale.json --figure docs/assets/cluster-scale.png

Its inputs are the points with one worker of benchmarks/cluster.py and the costs of benchmarks/cluster_costs.py. Nothing
is fitted to the points with more workers, which it is compared with. The points with sleeping environments come from

    PYTHONPATH=benchmarks python benchmarks/cluster.py --workers 1 2 4 --cores 1 --envs 64 --warm 4 --seconds 15 \\
        --preset paper --env sleeping_env:Sleeping --out results/cluster-sleeping.json -- --device cpu --data.reuse 1 \\
        --data.seq-len 20 --data.batch 16 --net.hidden 64 --learner.publish-every 4 --learner.pull-every 20

and the same with --data.reuse 10 (cluster-sleeping-learner.json) and 25 (cluster-sleeping-saturated.json).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster_model import Cluster, Outcome, simulate

RESULTS = Path("results")
GBIT = 1e9 / 8
ATARI = {"envs": 20, "seq_len": 40, "batch": 8, "reuse": 1.0, "publish_every": 25, "pull_every": 64}
"""Of ppo-casa's paper preset; `step_bytes` is a frame and a slot's other fields, `weights_bytes` the network."""
ATARI |= {"step_bytes": 7077.0, "weights_bytes": 3_250_448.0}
SLEEPING = {"envs": 64, "seq_len": 20, "batch": 16, "publish_every": 4, "pull_every": 20, "step_bytes": 277.0}
SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "sleeping environments, light learner": ("cluster-sleeping.json", {**SLEEPING, "reuse": 1.0}),
    "sleeping environments, heavier learner": ("cluster-sleeping-learner.json", {**SLEEPING, "reuse": 10.0}),
    "sleeping environments, heaviest learner": ("cluster-sleeping-saturated.json", {**SLEEPING, "reuse": 25.0}),
    "Breakout on 16 cores and an H200": ("h200/cluster-speed.json", ATARI),
    # Two emulator threads of each worker, and a thread that acts for 16% of the time.
    "the same, workers share the 16 cores": ("h200/cluster-speed.json", {**ATARI, "cores": 16.0, "worker_cores": 2.16}),
}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 100, 150, 200, 300, 500, 700, 1000)
SECONDS = 60.0


def points(file: str) -> dict[int, dict[str, Any]]:
    """Workers -> point of the Ray engine."""
    found = json.loads((RESULTS / file).read_text())["points"]
    return {point["workers"]: point for point in found if point["engine"] == "ray" and "steps_per_second" in point}


def costs() -> dict[str, float]:
    """Seconds for each worker of a turn: looking at it, and sending it weights."""
    one, many = (json.loads((RESULTS / "cluster-costs.json").read_text())["seconds"][count] for count in ("1", "1000"))
    look = sum(many[name] - one[name] for name in ("ready", "ask", "update_same_weights")) / 999
    return {"look": look, "send": many["update_new_weights"] / 1000}


def measured(point: dict[str, Any], setting: dict[str, Any], **more: Any) -> Cluster:
    """The model's inputs from the point with one worker: its rate, and the shares of the learner's two threads."""
    speed, shares = point["steps_per_second"], point["shares"]
    learner_steps = speed * setting["reuse"] / (setting["batch"] * setting["seq_len"])  # a second
    learner, receive = shares["time_learner"] / learner_steps, shares["time_transfer"] / speed
    return Cluster(**{"rate": speed, "learner": learner, "receive": receive, **costs(), **setting, **more})


def compare() -> list[dict[str, Any]]:
    """The model beside every point that was measured."""
    found = []
    for name, (file, setting) in SETUPS.items():
        seen = points(file)
        cluster = measured(seen[1], setting)
        for workers, point in sorted(seen.items()):
            said = simulate(cluster, workers, SECONDS)
            row = {"setup": name, "workers": workers, "measured": point["steps_per_second"]}
            row |= {"model": said.steps_per_second, "off": said.steps_per_second / point["steps_per_second"] - 1}
            row |= {"measured_lag": point["policy_lag"], "model_lag": said.policy_lag, "limit": said.limit}
            found.append(row)
    return found


def scenarios() -> dict[str, Cluster]:
    """Clusters to ask about: workers with two cores each, eight on a node, a learner with an H200."""
    base = measured(points("h200/cluster-speed.json")[1], ATARI, latency=1e-3)
    ten, wide = replace(base, bandwidth=10 * GBIT), replace(base, bandwidth=100 * GBIT)
    return {
        "10 Gbit/s": ten,
        "100 Gbit/s": wide,
        "100 Gbit/s, learner 4 times as fast": replace(wide, learner=wide.learner / 4),
        "100 Gbit/s, learner and receiver 4 times as fast": replace(
            wide, learner=wide.learner / 4, receive=wide.receive / 4, send=wide.send / 4, look=wide.look / 4
        ),
        "100 Gbit/s, workers live 10 minutes": replace(wide, lifetime=600.0, restart=60.0),
    }


def extend(counts: tuple[int, ...]) -> dict[str, dict[int, Outcome]]:
    """Scenario -> workers -> what the model says. 60 s of the cluster, fewer where there are very many events."""
    found: dict[str, dict[int, Outcome]] = {}
    for name, cluster in scenarios().items():
        found[name] = {}
        for workers in counts:
            found[name][workers] = simulate(cluster, workers, SECONDS if workers < 200 else SECONDS / 3)
        print(name, {n: f"{o.steps_per_second:,.0f} {o.limit}" for n, o in found[name].items()}, flush=True)
    return found


def draw(found: dict[str, dict[int, Outcome]], path: Path) -> None:
    """Steps/s by workers, both on logarithmic axes, with the points measured on a machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, outcomes in found.items():
        style = "--" if "live" in name else "-"
        axes.plot(list(outcomes), [o.steps_per_second for o in outcomes.values()], style, label=name, linewidth=1.5)
    seen = points("h200/cluster-speed.json")
    one = seen[1]["steps_per_second"]
    axes.plot(COUNTS, [one * n for n in COUNTS], "k:", linewidth=0.8, label="one worker's rate x workers")
    axes.plot(list(seen), [p["steps_per_second"] for p in seen.values()], "ko", label="measured on 16 cores, one H200")
    axes.set(xscale="log", yscale="log", xlabel="rollout workers of 2 cores", ylabel="agent steps/s")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "cluster-scale.json")
    parser.add_argument("--figure", type=Path, default=Path("docs/assets/cluster-scale.png"))
    options = parser.parse_args()
    compared = compare()
    table = Table("setup", "workers", "measured", "model", "off", "lag measured", "lag model", "limit")
    for row in compared:
        speeds = (f"{row['measured']:,.0f}", f"{row['model']:,.0f}", f"{row['off']:+.0%}")
        lags = (f"{row['measured_lag']:.0f}", f"{row['model_lag']:.0f}")
        table.add_row(row["setup"], str(row["workers"]), *speeds, *lags, row["limit"])
    Console(width=120).print(table)
    found = extend(COUNTS)
    inputs = {name: {k: v for k, v in asdict(c).items() if v != float("inf")} for name, c in scenarios().items()}
    curves = {name: {n: asdict(outcome) for n, outcome in curve.items()} for name, curve in found.items()}
    options.out.write_text(json.dumps({"compared": compared, "inputs": inputs, "curves": curves}, indent=1) + "\n")
    draw(found, options.figure)
    print(f"wrote {options.out}, {options.figure}")


if __name__ == "__main__":
    main()
