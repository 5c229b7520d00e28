"""Stable-Baselines3 on Atari, timed: run by benchmarks/peers.py with the Python of its own environment.

    python benchmarks/rivals/sb3.py --algo ppo --seconds 20 --vec subproc --threads 2
    python benchmarks/rivals/sb3.py --device cuda --envs 64 --batch-size 2048

PPO has the hyperparameters that its authors publish for Atari (RL Zoo): 8 environments, 128 steps, batch 256,
4 epochs, the Nature CNN. DQN likewise: one environment, a batch of 32 every 4 steps (so 8 passes over the data).
The last line of the output is JSON. Time is counted from the end of one training phase to the end of another, so
that each window holds as much learning as acting.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version

import ale_py
import gymnasium
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)  # here, so that it holds in the processes of SubprocVecEnv too
VECS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
FIRST_LEARNING = 1_000
"""Steps before DQN learns; the published 100,000 only delay what is measured."""


class Clock(BaseCallback):
    """Steps and seconds between the first and the last beginning of a rollout after a warm-up."""

    def __init__(self, seconds: float, warm_up: float, least_steps: int) -> None:
        super().__init__()
        self.seconds, self.warm_up, self.least_steps = seconds, warm_up, least_steps
        self.born = time.perf_counter()
        self.first: tuple[float, int] | None = None
        self.last = (0.0, 0)

    def _on_rollout_start(self) -> None:
        now = (time.perf_counter(), self.num_timesteps)
        if self.first is None:
            if now[1] > self.least_steps and now[0] - self.born >= self.warm_up:
                self.first = now
        else:
            self.last = now

    def _on_step(self) -> bool:
        return self.first is None or self.last[0] - self.first[0] < self.seconds

    @property
    def rate(self) -> float:
        assert self.first is not None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--vec", choices=VECS, default="subproc")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its own choice")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--envs", type=int, default=8, help="of PPO")
    parser.add_argument("--batch-size", type=int, default=256, help="of PPO; it divides the environments times 128")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    envs = options.envs if options.algo == "ppo" else 1
    # make_atari_env applies SB3's AtariWrapper: no-ops, frame skip 4, 84x84 gray, clipped rewards.
    env = VecFrameStack(make_atari_env(f"{options.game}NoFrameskip-v4", envs, seed=0, vec_env_cls=VECS[options.vec]), 4)
    if options.algo == "ppo":
        model = PPO(
            "CnnPolicy",
            env,
            n_steps=128,
            n_epochs=options.epochs,
            batch_size=options.batch_size,
            learning_rate=2.5e-4,
            clip_range=0.1,
            vf_coef=0.5,
            ent_coef=0.01,
            device=options.device,
        )
        least = envs * 128
    else:
        model = DQN(
            "CnnPolicy",
            env,
            buffer_size=100_000,
            learning_rate=1e-4,
            batch_size=32,
            learning_starts=FIRST_LEARNING,
            target_update_interval=1_000,
            train_freq=4,
            gradient_steps=1,
            exploration_fraction=0.1,
            exploration_final_eps=0.01,
            device=options.device,
        )
        least = FIRST_LEARNING
    clock = Clock(options.seconds, options.warm_up, least)
    model.learn(10**9, callback=clock)
    env.close()
    found = {
        "steps_per_second": clock.rate,
        "steps": clock.last[1] - clock.first[1],
        "envs": envs,
        "vectorization": options.vec,
        "device": str(model.device),
        "batch_size": model.batch_size,
        "threads": torch.get_num_threads(),
        "parameters": sum(p.numel() for p in model.policy.parameters()),
        "versions": {name: version(name) for name in ("stable-baselines3", "torch", "gymnasium", "ale-py")},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
