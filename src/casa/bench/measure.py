"""`casa bench`: throughput of each stage alone and of the full loop, and the bottleneck, all measured in one run.

Machines are noisy, so the stages are interleaved over several rounds. A rate is the median over rounds, and a ratio is
the median of the per-round ratios.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from casa.bench.profile import profile_view, take_profile
from casa.bench.replay import FRAMES, replay_cost
from casa.bench.soak import soak
from casa.bench.stages import Alone, Emulation, EndToEnd
from casa.bench.view import report
from casa.config.fields import RunConfig
from casa.engines.resolve import pick_mode
from casa.envs import make_env
from casa.errors import UserError
from casa.run.metrics import rss_bytes
from casa.runtime.machine import machine, peak_rss_bytes
from casa.runtime.resources import pick_device
from casa.runtime.threads import prepare

FIRST_STEPS = 32
"""Random steps before measuring, so that the observations are not an episode's first screens."""
SHARES = ("bottleneck", "time_environment", "time_inference", "time_learner", "time_waiting", "reuse", "policy_lag")
Tell = Callable[[str], None]
Stage = Callable[[float], float]


def bench_command(
    config: RunConfig,
    console: Console,
    *,
    seconds: float = 5.0,
    rounds: int = 3,
    soak_minutes: float = 0.0,
    profile: bool = False,
    json_path: Path | None = None,
) -> dict[str, Any]:
    """Measure, print the table, write JSON to `json_path` if given; returns the record."""
    if config.engine != "local":
        raise UserError(f"casa bench measures the local engine, got engine {config.engine!r}; use 'local'")
    if seconds <= 0 or rounds < 1 or soak_minutes < 0:
        raise UserError(
            f"--seconds must be > 0, --rounds >= 1 and --soak >= 0, got {seconds:g}, {rounds} and {soak_minutes:g}"
        )
    if json_path is not None:
        try:  # fail now, not after minutes of measuring
            json_path.parent.mkdir(parents=True, exist_ok=True)
            json_path.touch()
        except OSError as error:
            raise UserError(f"--json: cannot write {json_path}: {error.strerror}") from None
    with _progress(console) as tell:
        record = measure(config, seconds=seconds, rounds=rounds, profile=profile, tell=tell)
        if soak_minutes:
            record["soak"] = soak(config, soak_minutes, lambda text: tell(f"soak: {text}"))
    console.print(report(record))
    if profile:
        console.print(profile_view(record["profile"]))
    if json_path is not None:
        json_path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        console.print(f"wrote {json_path}", highlight=False)
    return record


def measure(
    config: RunConfig,
    *,
    seconds: float,
    rounds: int,
    profile: bool = False,
    tell: Tell = lambda text: None,
    replay_frames: int = FRAMES,
) -> dict[str, Any]:
    """All numbers of the benchmark, as plain data; each stage runs for `seconds` per round, full loops maybe longer."""
    device = pick_device(config.device)
    chosen = pick_mode(config)
    modes: list[str] = [chosen] if config.mode != "auto" else [chosen, *({"sync", "async"} - {chosen})]
    found: dict[str, Any] = {"machine": {**machine(device), "device": device.type}}
    with ExitStack() as stack:
        loops: dict[str, EndToEnd] = {}
        for mode in modes:
            tell(f"making the environments of {mode}")
            loops[mode] = EndToEnd(config, mode, make_env)
            stack.callback(loops[mode].close)
            tell(f"warming up {mode}")
            loops[mode].warm_up(min(seconds, 2.0))
            found.setdefault("memory", _memory(loops[mode], device))  # before a second system is built
        prepare("sync" if device.type == "cpu" else chosen, device)  # a stage alone gets all cores
        found["machine"]["torch_threads"] = torch.get_num_threads()
        system = loops[chosen].system
        emulation = Emulation(system.actors)
        alone = Alone(config, system.spec, emulation.play(FIRST_STEPS), system.config.compile == "yes")
        stages: dict[str, Stage] = {
            "emulation": emulation.measure,
            "inference": alone.infer,
            "writing": alone.write,
            "learner": alone.train,
            **{mode: loop.measure for mode, loop in loops.items()},
        }
        found |= summarize(take_turns(stages, seconds, rounds, tell), modes, config, found["machine"])
        for mode, loop in loops.items():
            found["end_to_end"][mode] |= {name: loop.row[name] for name in SHARES if name in loop.row}
        if profile:
            tell("profiling")
            found["profile"] = take_profile(loops[found["best_mode"]], seconds)
        found |= alone.facts()
        found["memory"]["peak_rss_bytes_of_benchmark"] = peak_rss_bytes()
    tell(f"prioritized sampling from {replay_frames:,} frames")
    found["prioritized"] = replay_cost(system.spec, device, replay_frames)
    found |= {"seconds": seconds, "rounds": rounds, "config": dataclasses.asdict(config)}
    return found


def take_turns(
    stages: dict[str, Stage], seconds: float, rounds: int, tell: Tell
) -> dict[str, list[float]]:
    """Stage -> its rate in each round. Stages are interleaved, so that other load on the machine affects them all."""
    rates: dict[str, list[float]] = {name: [] for name in stages}
    for i in range(rounds):
        for name, stage in stages.items():
            tell(f"round {i + 1} of {rounds}: {name}")
            rates[name].append(stage(seconds))
    return rates


def summarize(
    rates: dict[str, list[float]], modes: list[str], config: RunConfig, machine: dict[str, Any]
) -> dict[str, Any]:
    """Medians, ratios to emulation, the ideal rate, and the bottleneck."""
    reuse = config.data.reuse
    stages: dict[str, Any] = {name: rates[name] for name in ("emulation", "inference", "writing")}
    stages["learner"] = [x / reuse for x in rates["learner"]]
    ideals = [ideal({name: stages[name][i] for name in stages}, machine) for i in range(len(rates["emulation"]))]
    found: dict[str, Any] = {
        "stages": {name: {"steps_per_second": median(x), "rounds": x} for name, x in stages.items()},
        "end_to_end": {
            mode: {
                "steps_per_second": median(rates[mode]),
                "rounds": rates[mode],
                "ratio_to_emulation": _ratio(rates[mode], rates["emulation"]),
                "ratio_to_ideal": _ratio(rates[mode], ideals),
            }
            for mode in modes
        },
        "ideal_steps_per_second": median(ideals),
    }
    found["stages"]["learner"]["trained_frames_per_second"] = median(rates["learner"])
    best = max(modes, key=lambda mode: found["end_to_end"][mode]["steps_per_second"])
    found["best_mode"], found["ratio"] = best, found["end_to_end"][best]["ratio_to_emulation"]
    costs = {name: 1 / stage["steps_per_second"] for name, stage in found["stages"].items()}
    found["limit"] = max(costs, key=lambda name: costs[name])
    found["shares"] = {name: cost / sum(costs.values()) for name, cost in costs.items()}
    return found


def ideal(rates: dict[str, float], machine: dict[str, Any]) -> float:
    """Ideal steps/s = cores / Σ (cores of a stage / its rate): all stages share the cores without overhead.

    Emulation uses all cores, the other stages as many as torch has threads. On CUDA, emulation has the cores and the
    other stages have the GPU: min(emulation, 1 / Σ 1/rate of the others).
    """
    rest = 1 / sum(1 / x for name, x in rates.items() if name != "emulation")
    if machine["device"] == "cuda":
        return min(rates["emulation"], rest)
    return 1 / (1 / rates["emulation"] + machine["torch_threads"] / machine["cores"] / rest)


def _ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))


def _memory(loop: EndToEnd, device: torch.device) -> dict[str, Any]:
    """Memory of a training run; pages of the ring that are not written yet are not resident."""
    ring = loop.system.ring
    found: dict[str, Any] = {
        "ring_bytes": ring.shape.bytes,
        "ring_filled": min(1.0, float(ring.written.mean()) / ring.shape.capacity),
        "rss_bytes": rss_bytes(),
    }
    if device.type == "cuda":
        found["cuda_peak_bytes"] = torch.cuda.max_memory_allocated(device)
        found["cuda_reserved_bytes"] = torch.cuda.memory_reserved(device)
    return found


class _progress:
    """Progress: a live line in a terminal, plain lines when piped."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
        )

    def __enter__(self) -> Tell:
        if not self.console.is_terminal:
            return lambda text: self.console.print(text, highlight=False)
        self.bar.start()
        task = self.bar.add_task("", total=None)
        return lambda text: self.bar.update(task, description=text)

    def __exit__(self, *exc: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()
