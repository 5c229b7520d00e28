"""PPO of Stable-Baselines3 with CasaPolicy and with its own MlpPolicy, all other settings the same.

    python benchmarks/sb3_policy.py                  # about half an hour on one core; needs gymnasium[box2d]
    python benchmarks/sb3_policy.py --plot-only      # needs matplotlib

Runs that the results file has already are kept; delete it to measure all of them again.

Settings are SB3's defaults with 8 environments x 256 steps (its 2048 steps a rollout) and rewards divided by the
standard deviation of returns (VecNormalize). Returns are of the environment's own rewards: the curve is the mean of
the last 100 episodes, the evaluation 20 episodes with the most likely action.
"""

import argparse
import itertools
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from casa.integrations.sb3 import CasaPolicy

POLICIES = {
    "CasaPolicy": (CasaPolicy, {}),
    "CasaPolicy, q_weight=1": (CasaPolicy, {"q_weight": 1.0}),
    "MlpPolicy": ("MlpPolicy", {}),
}
STEPS = {"CartPole-v1": 100_000, "LunarLander-v3": 150_000}


class Curve(BaseCallback):
    """(steps, mean return of the last 100 episodes, entropy) after every rollout."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def _on_rollout_end(self):
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        entropy = -self.logger.name_to_value.get("train/entropy_loss", np.nan)
        if returns:
            row = {"step": self.num_timesteps, "return": round(float(np.mean(returns)), 2)}
            self.rows.append(row | ({} if np.isnan(entropy) else {"entropy": round(float(entropy), 4)}))

    def _on_step(self):
        return True


def run(policy, env_id, seed, steps):
    env = VecNormalize(make_vec_env(env_id, 8, seed=seed), norm_obs=False)
    policy_class, policy_kwargs = POLICIES[policy]
    model = PPO(policy_class, env, n_steps=256, seed=seed, device="cpu", policy_kwargs=policy_kwargs)
    curve, started = Curve(), time.perf_counter()
    model.learn(steps, callback=curve)
    seconds = time.perf_counter() - started
    mean, std = evaluate_policy(model, make_vec_env(env_id, 1, seed=1000 + seed), n_eval_episodes=20)
    row = {"policy": policy, "env": env_id, "seed": seed, "steps": steps, "seconds": round(seconds, 1)}
    row |= {"last_100": curve.rows[-1]["return"], "evaluation": round(float(mean), 2), "std": round(float(std), 2)}
    print(row, flush=True)
    return row | {"curve": curve.rows}


def machine():
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    packages = ("torch", "stable_baselines3", "gymnasium", "numpy", "casa-rl")
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "command": " ".join(["python", *sys.argv]),
    }


def plot(runs, picture):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    envs = list(dict.fromkeys(r["env"] for r in runs))
    figure, axes = plt.subplots(1, len(envs), figsize=(5.5 * len(envs), 4.2), layout="constrained", squeeze=False)
    for ax, env in zip(axes[0], envs, strict=True):
        for color, policy in zip(("C0", "C2", "C1"), POLICIES, strict=True):
            for i, r in enumerate(r for r in runs if (r["env"], r["policy"]) == (env, policy)):
                x, y = [row["step"] / 1000 for row in r["curve"]], [row["return"] for row in r["curve"]]
                ax.plot(x, y, color=color, label=policy if i == 0 else None)
        ax.set(title=f"{env}: mean return of the last 100 episodes", xlabel="thousand steps", ylabel="return")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False)
    figure.savefig(picture, dpi=120)
    print(f"wrote {picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[11, 12])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--out", type=Path, default=Path("results/integrations/sb3.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/sb3.png"))
    parser.add_argument("--plot-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.plot_only:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        runs = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
        done = {(r["env"], r["seed"], r["policy"]) for r in runs}
        for env, seed, policy in itertools.product(args.envs, args.seeds, args.policies):
            if (env, seed, policy) not in done:
                runs.append(run(policy, env, seed, STEPS[env]))
                lines = ",\n".join(json.dumps(r) for r in runs)
                args.out.write_text(f'{{"machine": {json.dumps(machine())}, "runs": [\n{lines}\n]}}\n')
    plot(json.loads(args.out.read_text())["runs"], args.picture)


if __name__ == "__main__":
    main()
