"""Steps/s on continuous control, learning included: `ppo-casa`, in several ways, and SB3's PPO.

    python benchmarks/continuous_speed.py --out results/continuous/speed.json     # needs gymnasium[mujoco], sb3

All have 16 environments, rollouts of 2,048 steps and ten passes over each. `sb3` has SB3's own minibatches of 64,
`sb3-same` those of casa's preset, 256. SB3's environments run in the main process, which is its default; with
"processes" in the name in a process each. casa chooses by the cost of a step; "one process" is its main process alone.
Networks have one thread. All take turns in every round, after a warm-up in which casa's steps are compiled; a rate is
the median over the rounds, and so is the ratio of `ppo-casa` to `sb3` of the same round. `--patience 60` waits
up to a minute before each measurement until no other program uses the cores; how busy they were is written beside the
rates.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from casa.bench.stages import EndToEnd
from casa.config.load import make_config
from casa.envs import make_env
from casa.runtime.machine import machine
from casa.runtime.threads import prepare
from continuous import SAME

OURS = {
    "ppo-casa": ("ppo-casa", "casa", "yes", "auto"),
    "ppo-casa, one process": ("ppo-casa", "casa", "yes", "sync"),
    "ppo-casa, not compiled": ("ppo-casa", "casa", "no", "auto"),
    "ppo-casa, Gaussian": ("ppo-casa", "casa-gaussian", "yes", "auto"),
    "ppo-gaussian": ("ppo-gaussian", "gaussian", "yes", "auto"),
}
THEIRS = {
    "sb3": ({**SAME, "batch_size": 64, "learning_rate": 3e-4}, False),
    "sb3, processes": ({**SAME, "batch_size": 64, "learning_rate": 3e-4}, True),
    "sb3-same": (SAME, False),
    "sb3-same, processes": (SAME, True),
}


def ours(recipe, head, compiled, vectorization, env):
    settings = {"recipe": recipe, "env": env, "preset": "continuous", "compile": compiled, "agent.head": head}
    settings |= {"env.vectorization": vectorization}
    loop = EndToEnd(make_config(settings), "sync", make_env)
    loop.threads = 1
    began = time.perf_counter()
    loop.warm_up(5.0)
    return loop.measure, time.perf_counter() - began


def theirs(given, processes, env):
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    settings = dict(given)
    kind = SubprocVecEnv if processes else DummyVecEnv
    envs = VecNormalize(make_vec_env(env, settings.pop("n_envs"), seed=0, vec_env_cls=kind), gamma=settings["gamma"])
    model = PPO("MlpPolicy", envs, seed=0, device="cpu", **settings)
    rollout = model.n_steps * envs.num_envs

    def measure(seconds):
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            model.learn(rollout, reset_num_timesteps=False)
            steps += rollout
        return steps / (time.perf_counter() - began)

    measure(2.0)
    return measure, None


def busy(seconds=0.5):
    """Share of all cores that is in use, by any program; this one sleeps meanwhile. Linux."""

    def times():
        numbers = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    before = times()
    time.sleep(seconds)
    total, idle = (b - a for a, b in zip(before, times(), strict=True))
    return 1 - idle / max(total, 1)


def wait_until_quiet(patience):
    end = time.perf_counter() + patience
    while (share := busy()) > 0.1 and time.perf_counter() < end:
        pass
    return round(share, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--only", nargs="+", default=[*OURS, *THEIRS], choices=[*OURS, *THEIRS])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prepare("sync", torch.device("cpu"))
    torch.set_num_threads(1)
    found = {"machine": machine(torch.device("cpu")), "seconds": args.seconds}
    found |= {name: {} for name in ("rates", "ratio", "busy", "warm_up")}
    for env in args.envs:
        made = {name: ours(*how, env) for name, how in OURS.items() if name in args.only}
        made |= {name: theirs(*how, env) for name, how in THEIRS.items() if name in args.only}
        found["warm_up"][env] = {name: seconds for name, (_, seconds) in made.items() if seconds}
        rounds, others = ({name: [] for name in made} for _ in range(2))
        for _ in range(args.rounds):
            for name, (measure, _) in made.items():
                others[name].append(wait_until_quiet(args.patience))
                rounds[name].append(round(measure(args.seconds)))
        found["rates"][env], found["busy"][env] = rounds, others
        if {"ppo-casa", "sb3"} <= rounds.keys():
            ratios = [a / b for a, b in zip(rounds["ppo-casa"], rounds["sb3"], strict=True)]
            found["ratio"][env] = round(median(ratios), 2)
            print(f"{env:16} ppo-casa to sb3: {median(ratios):.2f}", flush=True)
        for name, rates in rounds.items():
            print(f"{env:16} {name:24} {median(rates):7,.0f} steps/s  {rates}, busy {others[name]}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
