"""A run of Stable-Baselines3 as its documentation advises it, for benchmarks/faults_rivals.py.

    python benchmarks/rivals/sb3_faults.py FOLDER --steps 100000 --how hang

PPO on CartPole (or on an environment that goes wrong), with a checkpoint every 400 steps; `--load` continues from one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "fault_tests"))

from bad_envs import Bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--how", help="an environment that goes wrong like this, instead of CartPole")
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--load", type=Path)
    options = parser.parse_args()
    env = make_vec_env(
        "CartPole-v1" if options.how is None else lambda: Bad(options.how),
        n_envs=4,
        seed=1,
        vec_env_cls=SubprocVecEnv if options.processes else DummyVecEnv,
    )
    if options.load:
        model = PPO.load(options.load, env=env, device="cpu")
    else:
        shape = {"net_arch": [options.width] * 2}
        model = PPO("MlpPolicy", env, n_steps=50, batch_size=50, learning_rate=options.lr, policy_kwargs=shape,
                    verbose=1, seed=0, device="cpu")
    save = CheckpointCallback(save_freq=100, save_path=str(options.folder))
    model.learn(options.steps, callback=save, reset_num_timesteps=not options.load)
    model.save(options.folder / "last")


if __name__ == "__main__":
    main()
