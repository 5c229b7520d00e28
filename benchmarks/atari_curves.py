"""Returns over frames of trials on Atari, beside published scores at 10 million frames, as a picture.

    cd results/atari-trials; python ../../benchmarks/atari_curves.py ten-million.jsonl cool.jsonl \\
        --names "casa, previous preset" "casa, gpu preset" --picture ../../docs/ten-million.png     # needs matplotlib
"""

import argparse
import json
from pathlib import Path

PUBLISHED = {  # at 10 million frames, sticky actions
    "PPO, DreamerV3's repository": {"Breakout": 49.77, "MsPacman": 2776.6, "SpaceInvaders": 694.87, "Assault": 825.24,
                                    "YarsRevenge": 37350.25},
    "Rainbow, IMPALA's network, Dopamine": {"Breakout": 249.32, "MsPacman": 2593.28, "SpaceInvaders": 1187.49,
                                            "Assault": 2171.17, "YarsRevenge": 11704.15},
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path, nargs="+", help="files of benchmarks/atari_trials.py")
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--picture", type=Path, required=True)
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    games = list(PUBLISHED["PPO, DreamerV3's repository"])
    figure, axes = plt.subplots(1, len(games), figsize=(15, 3.2), layout="constrained")
    for number, file in enumerate(args.trials):
        runs = [run for line in file.open() if (run := json.loads(line)).get("game") in games]
        label = args.names[number] if number < len(args.names) else file.stem
        for run in runs:
            points = [(4e-6 * row["step"], row["return"]) for row in run["rows"] if row.get("return") is not None]
            x, y = [point[0] for point in points], [point[1] for point in points]
            axes[games.index(run["game"])].plot(x, y, color=f"C{number}", label=label)
    for axis, game in zip(axes, games, strict=True):
        for marker, (name, scores) in zip("ox", PUBLISHED.items(), strict=True):
            axis.plot(10, scores[game], marker, color="black", label=name, clip_on=False)
        axis.set(title=game, xlabel="million frames", xlim=(0, 10), ylim=(0, None))
    axes[0].set_ylabel("mean return of 100 episodes")
    found = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=len(found), frameon=False)
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
