"""A run of Sample Factory's APPO as its documentation advises it, for benchmarks/faults_rivals.py.

    python benchmarks/rivals/sample_factory_faults.py FOLDER --steps 100000 --how hang

CartPole (or an environment that goes wrong) in two processes, with a checkpoint every second; a folder that holds a run
is resumed, as is its default.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gymnasium as gym
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

sys.path.insert(0, str(Path(__file__).parents[1] / "fault_tests"))

from bad_envs import Bad


def make(name, cfg=None, env_config=None, render_mode=None):
    how = sys.argv[sys.argv.index("--how") + 1] if "--how" in sys.argv else None
    return gym.make("CartPole-v1") if how is None else Bad(how)


register_env("mine", make)  # at the top, so that it holds in the processes too


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000_000)
    parser.add_argument("--how", help="an environment that goes wrong like this, instead of CartPole")
    parser.add_argument("--processes", action="store_true", help="always so")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    words = [
        "--algo=APPO",
        "--env=mine",
        "--experiment=run",
        f"--train_dir={options.folder}",
        "--device=cpu",
        "--num_workers=2",
        "--num_envs_per_worker=2",
        "--rollout=32",
        "--batch_size=64",
        "--save_every_sec=1",
        "--use_rnn=False",
        f"--learning_rate={options.lr}",
        f"--train_for_env_steps={options.steps}",
        "--encoder_mlp_layers",
        str(options.width),
        str(options.width),
    ]
    settings, _ = parse_sf_args(words)
    status = run_rl(parse_full_cfg(settings, words))
    print("status", status)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
