"""Sample Factory's APPO on Atari, timed: run by benchmarks/peers.py with the Python of its own environment.

    python benchmarks/rivals/sample_factory_appo.py --seconds 20 --layout async
    python benchmarks/rivals/sample_factory_appo.py --device cuda --layout fast --workers 16

The hyperparameters are those of its Atari example: 8 environments, rollouts of 128, batch 256, 4 epochs, and its
convnet_atari (the Nature CNN). Layouts: "sync" is the example's own (8 processes with one environment each), "async"
lets sampling and learning overlap, with two processes of four environments in two halves, "fast" is what its
documentation of Atari gives as better parameters: 16 processes of eight environments, rollouts of 32, batch 1024. It
advises a process for each core, and for throughput 10 to 30 environments in each and two processes for the policy.
The last line of the output is JSON. Time is counted between training iterations, after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.metadata import version

import ale_py.roms
import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.train import make_runner
from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

LAYOUTS = {
    "sync": ["--async_rl=False", "--num_workers=8", "--num_envs_per_worker=1", "--worker_num_splits=1"],
    "async": ["--async_rl=True", "--num_workers=2", "--num_envs_per_worker=4", "--worker_num_splits=2"],
    "fast": [
        "--async_rl=True",
        "--num_workers=16",
        "--num_envs_per_worker=8",
        "--worker_num_splits=2",
        "--rollout=32",
        "--batch_size=1024",
    ],
}
DEVICES = {"cpu": "cpu", "cuda": "gpu"}
"""Torch's name of a device, and Sample Factory's."""

# The emulator's wheel registers its games with Gymnasium 1 only, and Sample Factory needs 0.29. At the top, so that
# it holds in the worker processes too.
for rom in ale_py.roms.get_all_rom_ids():
    gymnasium.register(
        id="".join(part.capitalize() for part in rom.split("_")) + "NoFrameskip-v4",
        entry_point="ale_py.env:AtariEnv",
        kwargs={"game": rom, "frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "rgb"},
        max_episode_steps=400_000,
    )


class Clock(AlgoObserver):
    """Environment steps and time at the training iterations after the warm-up; ends the run when time is up."""

    def __init__(self, seconds: float, warm_up: float) -> None:
        self.seconds, self.warm_up = seconds, warm_up
        self.began: float | None = None
        self.marks: list[tuple[float, int]] = []

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        now, steps = time.perf_counter(), sum(runner.env_steps.values())
        self.began = self.began or now
        if now - self.began >= self.warm_up and (not self.marks or steps > self.marks[-1][1]):
            self.marks.append((now, steps))
            if now - self.marks[0][0] >= self.seconds:
                runner.cfg.train_for_env_steps = 0  # already passed: the run ends

    @property
    def rate(self) -> float:
        (began, first), (ended, last) = self.marks[0], self.marks[-1]
        return (last - first) / (ended - began)


def overrides(options: argparse.Namespace) -> list[str]:
    """The flags of Sample Factory that were asked for by number, to follow a layout's."""
    numbers = {
        "num_workers": options.workers,
        "num_envs_per_worker": options.envs_per_worker,
        "batch_size": options.batch_size,
        "policy_workers_per_policy": options.policy_workers,
    }
    return [f"--{name}={number}" for name, number in numbers.items() if number is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--layout", choices=LAYOUTS, default="sync")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--workers", type=int, help="processes with environments, instead of the layout's")
    parser.add_argument("--envs-per-worker", type=int, help="instead of the layout's; even where it has two halves")
    parser.add_argument("--batch-size", type=int, help="frames in a minibatch, instead of the layout's")
    parser.add_argument("--policy-workers", type=int, help="processes that choose actions, instead of one")
    options = parser.parse_args()
    register_atari_components()
    with tempfile.TemporaryDirectory() as folder:
        cfg = parse_atari_args(
            [
                "--algo=APPO",
                f"--env=atari_{options.game.lower()}",
                "--experiment=peers",
                f"--train_dir={folder}",
                f"--device={DEVICES[options.device]}",
                "--summaries_use_frameskip=False",  # count agent steps
                f"--num_epochs={options.epochs}",
                "--train_for_env_steps=1000000000",
                *LAYOUTS[options.layout],
                *overrides(options),
            ]
        )
        cfg, runner = make_runner(cfg)
        clock = Clock(options.seconds, options.warm_up)
        runner.register_observer(clock)
        runner.init()
        runner.run()
    found = {
        "steps_per_second": clock.rate,
        "steps": clock.marks[-1][1] - clock.marks[0][1],
        "envs": cfg.num_workers * cfg.num_envs_per_worker,
        "vectorization": options.layout,
        "device": options.device,
        "batch_size": cfg.batch_size,
        "epochs": cfg.num_epochs,
        "policy_workers": cfg.policy_workers_per_policy,
        "versions": {name: version(name) for name in ("sample-factory", "torch", "gymnasium", "ale-py")},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
