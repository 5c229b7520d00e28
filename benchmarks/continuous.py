"""Continuous control: casa's recipes with one setting for all, and SB3's PPO with its zoo's settings for each task.

The agent sb3-same is SB3's PPO with the environments, minibatches and passes of casa's preset, to compare speeds.

    python benchmarks/continuous.py --jobs 2                     # needs gymnasium[mujoco], box2d, stable-baselines3
    python benchmarks/continuous.py --envs Hopper-v5 --agents ppo-casa sb3 --seeds 3 --steps 300_000
    python benchmarks/continuous.py --runs casa:Hopper-v5:0 sb3:Hopper-v5:0 --seconds 300 --jobs 2
    RESULTS=results/continuous/std-0.8 python benchmarks/continuous.py --agents ppo-casa --set net.initial_std=0.8
    RESULTS=results/continuous/conflict python benchmarks/continuous.py --agents ppo-type5 --seeds 1
    RESULTS=results/continuous/conflict-shared python benchmarks/continuous.py --agents ppo-gaussian ppo-casa \
        --seeds 1 --set net.value_backbone=false
    python benchmarks/continuous.py --only-table
    python benchmarks/continuous.py --evaluate                   # casa's runs under runs/continuous once more

Each run is a process of its own with one thread. It writes results/continuous/AGENT-ENVIRONMENT-SEED.json: return by
step while training, chi and cosines of the gradients (casa only), seconds, and ten new episodes, once without chance
and once sampled. A run whose file is there is not repeated; RESULTS in the environment names another folder. With
--seconds all training ends after that time, whatever its steps; evaluation follows.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

RESULTS = Path(os.environ.get("RESULTS", "results/continuous"))
STEPS = {
    "Pendulum-v1": 300_000,
    "HalfCheetah-v5": 1_000_000,
    "Hopper-v5": 1_000_000,
    "Walker2d-v5": 1_000_000,
    "LunarLanderContinuous-v3": 500_000,
    "BipedalWalker-v3": 1_000_000,
}
AGENTS = ("ppo-casa", "casa", "ppo-gaussian", "ppo-type5", "sb3", "sb3-same")
MEASURED = ("chi", "cos_beta", "cos_v_pi", "entropy")
RUNS = Path("runs/continuous")
EPISODES = 10
POINTS = 50
"""Points of a curve."""

_MUJOCO = {"n_envs": 1, "n_steps": 512, "wide": True}
ZOO = {  # hyperparams/ppo.yml of rl-baselines3-zoo; "wide": two layers of 256 with ReLU and log_std_init=-2
    "Pendulum-v1": {"n_envs": 4, "n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3, "use_sde": True,
                    "sde_sample_freq": 4, "normalize": False},
    "HalfCheetah-v5": {**_MUJOCO, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-05, "n_epochs": 20,
                       "ent_coef": 0.000401762, "clip_range": 0.1, "gae_lambda": 0.92, "max_grad_norm": 0.8,
                       "vf_coef": 0.58096},
    "Hopper-v5": {**_MUJOCO, "batch_size": 32, "gamma": 0.999, "learning_rate": 9.80828e-05, "n_epochs": 5,
                  "ent_coef": 0.00229519, "clip_range": 0.2, "gae_lambda": 0.99, "max_grad_norm": 0.7,
                  "vf_coef": 0.835671},
    "Walker2d-v5": {"n_envs": 1, "n_steps": 512, "batch_size": 32, "gamma": 0.99, "learning_rate": 5.05041e-05,
                    "n_epochs": 20, "ent_coef": 0.000585045, "clip_range": 0.1, "gae_lambda": 0.95,
                    "max_grad_norm": 1.0, "vf_coef": 0.871923},
    "LunarLanderContinuous-v3": {"n_envs": 16, "n_steps": 1024, "batch_size": 64, "gamma": 0.999, "n_epochs": 4,
                                 "ent_coef": 0.01, "gae_lambda": 0.98, "normalize": False},
    "BipedalWalker-v3": {"n_envs": 32, "n_steps": 2048, "batch_size": 64, "gamma": 0.999, "n_epochs": 10,
                         "clip_range": 0.18},
}  # fmt: skip


SAME = {"n_envs": 16, "n_steps": 128, "batch_size": 256, "n_epochs": 10, "gamma": 0.99, "learning_rate": 1e-3}
"""The environments, minibatches and passes of casa's preset, for sb3-same; all else is SB3's default."""


def ours(recipe, env, seed, steps, seconds, changes):
    import casa

    class Limit(casa.Callback):
        def on_start(self, training):
            self.began = time.perf_counter()

        def on_report(self, training, row):
            if time.perf_counter() - self.began > seconds:
                training.stop(f"{seconds:g} seconds are over")

    directory = RUNS / f"{recipe}-{env}-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    run = casa.train(
        recipe, env, steps, seed=seed, run_dir=directory, callbacks=[Limit()], quiet=True,
        log__diagnostics_every=2000, log__every_steps=5000, log__tensorboard="no", checkpoint__every_seconds=3600,
        **{key.replace(".", "__"): value for key, value in changes.items()},
    )  # fmt: skip
    found = run.evaluate(EPISODES)["modes"]
    row = run.row
    return {
        "steps": row["step"],
        "seconds": row["seconds"],
        "episodes": [[e["step"], e["score"]] for e in run.episodes],
        **{name: [[r["step"], r[name]] for r in run.metrics if name in r] for name in MEASURED},
        "greedy": found["greedy"]["returns"],
        "sampled": found["sampled"]["returns"],
        "settings": {"preset": run.config.preset, "learner_steps": row["learner_steps"], **changes},
    }


def sb3(zoo, env, seed, steps, seconds, episodes=EPISODES):
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings = dict(zoo)
    envs = make_vec_env(env, settings.pop("n_envs"), seed=seed)
    if settings.pop("normalize", True):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    policy = settings.pop("policy_kwargs", {})
    if settings.pop("wide", False):
        policy = {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        }
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs=policy, **settings)
    ended, began = [], time.perf_counter()

    class Curve(BaseCallback):
        def _on_step(self):
            for info in self.locals["infos"]:
                if "episode" in info:
                    ended.append([self.num_timesteps, float(info["episode"]["r"])])
            return time.perf_counter() - began < seconds

    model.learn(steps, callback=Curve())
    taken = time.perf_counter() - began
    if isinstance(envs, VecNormalize):
        envs.training = envs.norm_reward = False
    found = {"steps": model.num_timesteps, "seconds": taken, "episodes": ended}
    if episodes:
        for name, best in (("greedy", True), ("sampled", False)):
            found[name], _ = evaluate_policy(model, envs, episodes, deterministic=best, return_episode_rewards=True)
    return found


def one(agent, env, seed, steps, seconds, changes):
    """Train one agent and write its file."""
    import torch

    from casa.runtime.machine import machine

    if agent.startswith("sb3"):
        found = sb3(ZOO[env] if agent == "sb3" else SAME, env, seed, steps, seconds)
    else:
        found = ours(agent, env, seed, steps, seconds, changes)
    episodes = np.array(found.pop("episodes")).reshape(-1, 2)
    edges = np.linspace(0, found["steps"], POINTS + 1)
    places = np.digitize(episodes[:, 0], edges, right=True)
    found["curve"] = [
        [int(edges[i]), round(float(episodes[places == i, 1].mean()), 2)]
        for i in range(1, POINTS + 1)
        if (places == i).any()
    ]
    found["last_100"] = float(episodes[-100:, 1].mean()) if len(episodes) else None
    found = {"agent": agent, "env": env, "seed": seed, **found, "machine": machine(torch.device("cpu"))}
    path(agent, env, seed).write_text(json.dumps(found) + "\n")


def evaluate_again():
    """Replace the evaluations of casa's runs whose directories are there."""
    import casa

    for file in sorted(RESULTS.glob("*.json")):
        found = json.loads(file.read_text())
        if (RUNS / file.stem).is_dir():
            modes = casa.Run(RUNS / file.stem).evaluate(EPISODES)["modes"]
            found |= {name: modes[name]["returns"] for name in ("greedy", "sampled")}
            file.write_text(json.dumps(found) + "\n")


def changes_of(texts):
    """["net.initial_std=0.8"] -> {"net.initial_std": 0.8}."""
    pairs = (text.partition("=") for text in texts)
    return {key: json.loads(value) for key, _, value in pairs}


def path(agent, env, seed):
    return RESULTS / f"{agent}-{env}-{seed}.json"


def start(agent, env, seed, args):
    if path(agent, env, seed).exists():
        return
    steps, began = args.steps or STEPS[env], time.perf_counter()
    seconds = args.until - began  # what is left for all
    if seconds < 10:
        return
    command = [sys.executable, __file__, "--one", agent, env, str(seed), str(steps), str(seconds), "--set", *args.set]
    log = Path("runs") / f"{agent}-{env}-{seed}.log"
    with log.open("w") as output:
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(command, stdout=output, stderr=output, env={**os.environ, **threads}, check=False)
    if done.returncode:
        print(f"{agent} {env} {seed} failed: {log.read_text()[-800:]}", flush=True)
        return
    found = json.loads(path(agent, env, seed).read_text())
    print(
        f"{agent} {env} {seed}: greedy {np.mean(found['greedy']):.0f}, last 100 {found['last_100'] or np.nan:.0f}, "
        f"{found['steps']:,} steps in {time.perf_counter() - began:.0f} s",
        flush=True,
    )


def table():
    """Markdown: greedy return and the last 100 episodes of training, by seed; steps/s."""
    print("| environment | agent | steps | greedy, mean (by seed) | last 100 episodes | steps/s |")
    print("|---|---|---|---|---|---|")
    files = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*-v[0-9]-*.json"))]
    for env, agent in itertools.product(STEPS, AGENTS):
        runs = [run for run in files if run["env"] == env and run["agent"] == agent]
        if runs:
            greedy = [float(np.mean(run["greedy"])) for run in runs]
            seeds = ", ".join(f"{x:,.0f}" for x in greedy)
            last = np.mean([run["last_100"] or np.nan for run in runs])
            speed = np.mean([run["steps"] / run["seconds"] for run in runs])
            steps = f"{np.mean([run['steps'] for run in runs]):,.0f}"
            print(f"| {env} | `{agent}` | {steps} | {np.mean(greedy):,.0f} ({seeds}) | {last:,.0f} | {speed:,.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--agents", nargs="+", default=["ppo-casa", "sb3"], choices=AGENTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", nargs="+", default=[], help="AGENT:ENVIRONMENT:SEED, instead of all combinations")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="0: as many as the table in this file says")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run trains longer than this after the start")
    parser.add_argument("--set", nargs="*", default=[], help="FIELD=VALUE, changes of casa's preset")
    parser.add_argument("--only-table", action="store_true")
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the runs that are there once more")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    Path("runs").mkdir(exist_ok=True)
    if args.one:
        agent, env, seed, steps, seconds = args.one
        one(agent, env, int(seed), int(steps), float(seconds), changes_of(args.set))
        return
    args.until = time.perf_counter() + args.seconds
    if args.evaluate:
        evaluate_again()
    elif not args.only_table:
        runs = [(a, env, str(seed)) for seed, env, a in itertools.product(range(args.seeds), args.envs, args.agents)]
        runs = [tuple(run.split(":")) for run in args.runs] or runs
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: start(*run, args), runs))
    table()


if __name__ == "__main__":
    main()
