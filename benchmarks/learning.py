"""What is learned with the defaults: `casa train --recipe R --env E` and nothing else, on small environments.

    python benchmarks/learning.py --jobs 2                 # needs box2d, stable-baselines3, matplotlib
    python benchmarks/learning.py --envs CartPole-v1 --seeds 5
    python benchmarks/learning.py --recipes r2d2-casa sb3 --envs Taxi-v4 MountainCar-v0
    python benchmarks/learning.py --envs MinAtar/Breakout-v1 MiniGrid-Empty-8x8-v0        # needs minatar, minigrid
    python benchmarks/learning.py --recipes casa ppo-casa r2d2-casa --scales 0.001 1000   # rewards in other units
    python benchmarks/learning.py --plot-only

sb3 is Stable-Baselines3's PPO with the settings of its zoo for that environment, which were made for 1,000,000 steps
(CartPole: 100,000), or its defaults, with one environment, if the zoo has none. MiniGrid-Empty-8x8-v0 and MinAtar,
which have no row, have that of MiniGrid-DoorKey-5x5-v0, and MinAtar its published network.
Each run is a process with one thread. Its metrics.jsonl is thinned to results/learning/RECIPE-ENVIRONMENT-SEED.jsonl; a
run whose file is there is not repeated. RESULTS in the environment names another folder.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import torch

from casa.runtime.machine import machine

RESULTS = Path(os.environ.get("RESULTS", "results/learning"))
STEPS = {
    "CartPole-v1": 100_000,
    "Acrobot-v1": 150_000,
    "LunarLander-v3": 200_000,
    "MinAtar/Breakout-v1": 200_000,
    "MinAtar/SpaceInvaders-v1": 200_000,
    "MiniGrid-Empty-8x8-v0": 100_000,
    "MountainCar-v0": 200_000,
    "Taxi-v4": 200_000,
    "CliffWalking-v1": 100_000,
    "FrozenLake-v1": 100_000,
}
TUNED = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3")
"""The environments that are run if none is named."""
RECIPES = ("casa", "ppo-casa", "ppo", "impala", "r2d2-casa", "sb3", "casa-plus")
_GRID = {"n_envs": 8, "n_steps": 128, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.99, "n_epochs": 10,
         "learning_rate": 2.5e-4, "clip_range": 0.2, "normalize": True}  # fmt: skip
"""The zoo's row of MiniGrid-DoorKey-5x5-v0."""
ZOO = {  # hyperparams/ppo.yml of rl-baselines3-zoo; "falling": learning rate and clip range fall linearly to 0
    "CartPole-v1": {"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
                    "learning_rate": 1e-3, "clip_range": 0.2, "falling": True},
    "Acrobot-v1": {"n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "normalize": True},
    "LunarLander-v3": {"n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999,
                       "n_epochs": 4, "ent_coef": 0.01},
    "MountainCar-v0": {"n_envs": 16, "n_steps": 16, "gae_lambda": 0.98, "gamma": 0.99, "n_epochs": 4,
                       "normalize": True},
    "MiniGrid-Empty-8x8-v0": _GRID,
    "MinAtar/Breakout-v1": {**_GRID, "normalize": False},
    "MinAtar/SpaceInvaders-v1": {**_GRID, "normalize": False},
}  # fmt: skip
KEPT = ("step", "seconds", "return", "entropy", "value", "loss_v", "gradient_norm", "return_scale", "learner_steps")


def file_of(recipe, env, seed, scale=1.0):
    folder = RESULTS if scale == 1 else RESULTS / f"rewards-x{scale:g}"
    return folder / f"{recipe}-{env.replace('/', '-')}-{seed}.jsonl"


def minatar_network():
    """MinAtar's published network as a features extractor of SB3: conv 3x3 16, FC 128, on grids [N, H, W, C]."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Features(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, 128)
            height, width, channels = space.shape
            layers = torch.nn.Conv2d(channels, 16, 3), torch.nn.ReLU(), torch.nn.Flatten()
            last = torch.nn.Linear(16 * (height - 2) * (width - 2), 128), torch.nn.ReLU()
            self.layers = torch.nn.Sequential(*layers, *last)

        def forward(self, obs):
            return self.layers(obs.permute(0, 3, 1, 2))

    return Features


def sb3(env, seed, steps):
    """Train SB3's PPO in this process and write its curve: the mean of the last 100 episodes, every 5,000 steps."""
    import numpy as np
    from stable_baselines3.common.utils import LinearSchedule

    import scaled_env
    from continuous import sb3 as ppo

    settings = {"n_envs": 1, "gamma": 0.99, "normalize": False, **ZOO.get(env, {})}
    if env.startswith("MinAtar"):
        settings["policy_kwargs"] = {"features_extractor_class": minatar_network(), "net_arch": []}
    if settings.pop("falling", False):
        for name in ("learning_rate", "clip_range"):
            settings[name] = LinearSchedule(settings[name], 0.0, 1.0)
    found = ppo(settings, partial(scaled_env.make, env), seed, steps, 1e9, episodes=0)
    episodes, rows = np.array(found["episodes"]).reshape(-1, 2), []
    for step in [*range(5000, found["steps"], 5000), found["steps"]]:
        ended = episodes[episodes[:, 0] <= step, 1][-100:]
        seconds = found["seconds"] * step / found["steps"]
        rows.append({"step": step, "seconds": seconds, "return": float(ended.mean()) if len(ended) else None})
    file_of("sb3", env, seed).write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(recipe, env, seed, scale=1.0, steps=0):
    result = file_of(recipe, env, seed, scale)
    name = str(result.relative_to(RESULTS).with_suffix(""))
    if result.exists():
        return
    began = time.perf_counter()
    if recipe == "sb3":
        cpu = start([__file__, "--one", env, str(seed), str(steps or STEPS[env])])
    else:
        cpu = ours(recipe, env, seed, scale, steps or STEPS[env], Path("runs/learning") / name, result)
    *before, last = result.read_text().splitlines(keepends=True)
    row = {**json.loads(last), "cpu_seconds": cpu}
    result.write_text("".join(before) + json.dumps(row) + "\n")
    print(f"{name}: {row['return']} after {time.perf_counter() - began:.0f} s", flush=True)


def start(words):
    """Run Python with one thread, which finds the modules beside this file; returns its CPU seconds.

    Those include its start, and do not depend on what else the machine does.
    """
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env={**os.environ, **more})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return usage.ru_utime + usage.ru_stime


def ours(recipe, env, seed, scale, steps, directory, result):
    """Train with `casa train` in `directory` and write the thinned curve; returns the CPU seconds."""
    result.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    which = ["--env", env]
    if scale != 1 or env.startswith("MiniGrid-"):
        which = ["--env", "scaled_env:make", "--env.kwargs", f"{{id: {env}, scale: {scale}}}"]
    command = ["casa", "train", "--recipe", recipe, *which, "--steps", str(steps), "--seed", str(seed)]
    command += ["--run-dir", str(directory)]
    cpu = start(["-m", *command])
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for row in rows:  # in the environment's own unit
        row["return"] = None if row["return"] is None else row["return"] / scale
    result.write_text("".join(json.dumps({key: row.get(key) for key in KEPT}) + "\n" for row in rows))
    return cpu


def table(scale):
    """Markdown: the mean return of the last 100 episodes, by seed."""
    print(f"\nRewards times {scale:g}\n")
    print("| environment | steps | recipe | return by seed | steps/s | CPU seconds |\n|---|---|---|---|---|---|")
    for env, recipe in product(STEPS, RECIPES):
        pattern = file_of(recipe, env, "*", scale)
        files = sorted(pattern.parent.glob(pattern.name))
        last = [json.loads(path.read_text().splitlines()[-1]) for path in files]
        if last:
            digits = 2 if env.startswith(("FrozenLake", "MiniGrid")) else 1 if env.startswith("MinAtar") else 0
            scores = ", ".join("none ended" if row["return"] is None else f"{row['return']:.{digits}f}" for row in last)
            speed = sum(row["step"] / row["seconds"] for row in last) / len(last)
            cpu = ", ".join(f"{row['cpu_seconds']:.0f}" if "cpu_seconds" in row else "-" for row in last)
            print(f"| {env} | {last[0]['step']:,} | `{recipe}` | {scores} | {speed:,.0f} | {cpu} |")


def plot(picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TUNED), figsize=(13, 3.8), layout="constrained")
    for axis, env in zip(axes, TUNED, strict=True):
        for color, recipe in enumerate(RECIPES):
            for path in sorted(RESULTS.glob(file_of(recipe, env, "*").name)):
                rows = [row for row in map(json.loads, path.read_text().splitlines()) if row["return"] is not None]
                label = recipe if path.stem.endswith("-0") else None
                axis.plot([r["step"] / 1000 for r in rows], [r["return"] for r in rows], f"C{color}", label=label)
        axis.set(title=env, xlabel="thousand agent steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean return, last 100 episodes")
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(TUNED), choices=STEPS)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--scales", nargs="+", type=float, default=[1.0], help="factors of the rewards")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--picture", default="docs/learning.png")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as the table in this file says")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.one:
        sb3(args.one[0], *map(int, args.one[1:]))
        return
    if not args.plot_only:
        (RESULTS / "machine.json").write_text(json.dumps(machine(torch.device("cpu")), indent=1) + "\n")
        runs = list(product(args.scales, range(args.seeds), args.envs, args.recipes))
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: train(run[3], run[2], run[1], run[0], args.steps), runs))
    for scale in args.scales:
        table(scale)
    plot(args.picture)


if __name__ == "__main__":
    main()
