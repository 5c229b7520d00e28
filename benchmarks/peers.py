"""Steps/s including learning, ours and other libraries', in turns in one run on one machine.

    python benchmarks/peers.py                      # everything: about half an hour; writes results/peers.json
    python benchmarks/peers.py --seconds 10 --rounds 1 --cases ppo-4 --rivals sb3

A case is a number of passes over the data with one network, the Nature CNN. Rivals run with the hyperparameters
that their authors publish for Atari, in the faster of their own ways to run environments (tried first, shown), with
torch's own choice of threads; each has a Python environment of its own under --venv, made on first use. Our recipe
has the rival's network, passes and frames a batch, once with 64 environments and its own precision, once
with the rival's number of environments, once in the rival's fp32. Every run is a fresh process and warms up first.

What is not equal: our heads have a fully connected layer of 512 more each; the rivals play with the game's own
actions (4 in Breakout), ours with all 18; DQN draws single transitions in batches of 32, ours sequences.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from casa.runtime.machine import machine
from casa.runtime.resources import has_cpu_bf16

HERE = Path(__file__).parent / "rivals"
TORCH = "torch==2.13.0"
"""The same for all, so that no rival is slower for its version of it."""
PACKAGES = {
    "sb3": ["stable-baselines3==2.9.2", "ale-py", "gymnasium", "opencv-python-headless"],
    "sample-factory": ["sample-factory==2.1.1", "ale-py==0.10.1", "opencv-python-headless"],
}
SCRIPTS = {"sb3": "sb3.py", "sample-factory": "sample_factory_appo.py"}
WAYS = {
    "sb3": [["--vec", "subproc"], ["--vec", "dummy"]],
    "sample-factory": [["--layout", "sync"], ["--layout", "async"]],
}
"""How a rival can run its environments; the fastest is kept."""


@dataclass(frozen=True)
class Case:
    """What is compared: flags of each rival, our flags, and the rival's number of environments."""

    title: str
    rivals: dict[str, list[str]]
    ours: list[str]
    envs: int


def _ppo(passes: int) -> Case:
    epochs = ["--epochs", str(passes)]
    # 32 x 8 frames are the rivals' batch of 256.
    flags = f"--recipe ppo --data.reuse {passes} --data.seq-len 32 --data.batch 8"
    return Case(
        f"PPO, {passes} {'pass' if passes == 1 else 'passes'}",
        {"sb3": ["--algo", "ppo", *epochs], "sample-factory": epochs},
        flags.split(),
        8,
    )


CASES = {
    "ppo-4": _ppo(4),
    "ppo-1": _ppo(1),
    "dqn-8": Case(
        "DQN and R2D2's family, 8 passes", {"sb3": ["--algo", "dqn"]}, ["--recipe", "r2d2", "--data.reuse", "8"], 1
    ),
}
OURS = ["--preset", "laptop", "--env.num-envs", "64", "--net.backbone", "nature", "--net.hidden", "512"]
OURS += ["--net.lstm", "0", "--mode", "async"]


def make_venv(rival: str, folder: Path, console: Console) -> Path | None:
    """The Python of a rival's environment; None where it cannot be installed."""
    home = folder / rival
    python, done = home / "bin" / "python", home / ".installed"
    if done.exists():
        return python
    console.print(f"installing {rival} into {home} ...", highlight=False)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", TORCH, *PACKAGES[rival]], check=True)
    except subprocess.CalledProcessError as error:
        console.print(f"{rival} does not install here, and is left out: {error}", highlight=False)
        return None
    done.touch()
    return python


def run(command: list[str]) -> dict[str, Any]:
    """The JSON in the last line of a command's output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def contestants(case: Case, game: str, pythons: dict[str, Path], precision: str) -> Iterator[tuple[str, list[str]]]:
    """(name, command without its seconds) of everyone in a case; ours first."""
    ours = [sys.executable, str(HERE / "ours.py"), "--env", game, *OURS, *case.ours]
    yield "ours", [*ours, "--precision", precision]
    yield f"ours, {case.envs} environments", [*ours, "--precision", precision, "--env.num-envs", str(case.envs)]
    if precision != "fp32":
        yield "ours, fp32", [*ours, "--precision", "fp32"]
    for rival, flags in case.rivals.items():
        if rival in pythons:
            yield rival, [str(pythons[rival]), str(HERE / SCRIPTS[rival]), "--game", game, *flags]


def fastest_way(command: list[str], ways: list[list[str]], seconds: float) -> tuple[list[str], dict[str, float]]:
    """The command in its fastest way, and the steps/s of each way."""
    tried = {" ".join(way): run([*command, *way, "--seconds", f"{seconds}"])["steps_per_second"] for way in ways}
    best = max(ways, key=lambda way: tried[" ".join(way)])
    return [*command, *best], tried


def compare(case: Case, options: argparse.Namespace, pythons: dict[str, Path], console: Console) -> dict[str, Any]:
    """Every contestant's rates over the rounds, and our ratios to the best rival of each round."""
    commands = dict(contestants(case, options.game, pythons, options.precision))
    ways: dict[str, dict[str, float]] = {}
    for rival in case.rivals.keys() & commands.keys():
        commands[rival], ways[rival] = fastest_way(commands[rival], WAYS[rival], options.seconds / 2)
        console.print(f"{case.title}: {rival} tried {ways[rival]}", highlight=False)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for i in range(options.rounds):
        for name, command in commands.items():
            result = run([*command, "--seconds", f"{options.seconds}"])
            found[name].append(result)
            speed = f"{result['steps_per_second']:,.0f} steps/s"
            console.print(f"{case.title}, round {i + 1} of {options.rounds}: {name} {speed}", highlight=False)
    rates = {name: [x["steps_per_second"] for x in results] for name, results in found.items()}
    rivals = [name for name in rates if name in case.rivals]
    ratios = {
        name: {
            rival: median(a / b for a, b in zip(rates[name], rates[rival], strict=True)) for rival in rivals
        }
        for name in rates
        if name not in rivals
    }
    return {
        "title": case.title,
        "median_steps_per_second": {name: median(x) for name, x in rates.items()},
        "rounds": rates,
        "ratios": ratios,
        "ways_tried": ways,
        "details": {name: {**results[-1], "command": shown(commands[name])} for name, results in found.items()},
    }


def shown(command: list[str]) -> list[str]:
    """A command as it reads from the project's root, without this machine's paths."""
    return [f"benchmarks/rivals/{Path(command[1]).name}", *command[2:]]


def show(cases: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(title="steps/s including learning, Nature CNN")
    for column in ("case", "who", "environments", "steps/s", "x sb3", "x sample-factory"):
        table.add_column(column, justify="left" if column in ("case", "who") else "right")
    for case in cases.values():
        for name, speed in case["median_steps_per_second"].items():
            ratios = case["ratios"].get(name, {})
            shown = [f"{ratios[rival]:.2f}" if rival in ratios else "" for rival in SCRIPTS]
            table.add_row(case["title"], name, str(case["details"][name]["envs"]), f"{speed:,.0f}", *shown)
        table.add_section()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rivals", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run, after its warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16" if has_cpu_bf16() else "fp32")
    parser.add_argument("--venv", type=Path, default=Path(".peers"), help="folder for the rivals' environments")
    parser.add_argument("--out", type=Path, default=Path("results/peers.json"))
    options = parser.parse_args()
    console = Console(width=120)
    record: dict[str, Any] = {
        "machine": machine(torch.device("cpu")),
        "game": options.game,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "cases": {},
    }
    found = {rival: make_venv(rival, options.venv, console) for rival in options.rivals}
    pythons = {rival: python for rival, python in found.items() if python is not None}
    for name in options.cases:
        record["cases"][name] = compare(CASES[name], options, pythons, console)
        options.out.parent.mkdir(parents=True, exist_ok=True)  # after each case, so that none is lost
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(record["cases"], console)
    console.print(f"wrote {options.out}", highlight=False)


if __name__ == "__main__":
    main()
