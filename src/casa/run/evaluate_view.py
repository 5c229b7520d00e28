"""`casa eval`: load an agent, play, print a table, write JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from casa import atari57
from casa.envs.names import require_trust
from casa.errors import UserError, printable
from casa.run import durable
from casa.run.agent import Agent, load
from casa.run.display import number
from casa.run.evaluate import Report, evaluate

PLAIN_EVERY = 5.0
"""Seconds between plain lines when the output is piped."""
_REFERENCES = {"random": "random", "human": "human", "CASA, paper": "casa", "world record": "world_record"}


def evaluate_command(
    console: Console,
    run: Path,
    *,
    which: str = "latest",
    episodes: int = 30,
    modes: Sequence[str] = ("greedy", "sampled"),
    tau: float | None = None,
    seed: int = 0,
    num_envs: int = 0,
    json_path: Path | None = None,
    device: str = "auto",
    trust: bool = False,
) -> dict[str, Any]:
    """Evaluate, print a table, write RUN/eval-STEP.json (eval-STEP-tau-TAU.json) or `json_path`; return the result."""
    if tau is not None and "sampled" not in modes:
        raise UserError(f"tau {tau:g} has no meaning for greedy play alone; use --policy sampled, or leave it out")
    agent = load(run, which, device, tau=tau, trust=trust)
    require_trust(agent.config.env.id, trust, str(run))
    name = f"eval-{agent.step}.json" if tau is None else f"eval-{agent.step}-tau-{tau!r}.json"
    path = json_path or _beside_checkpoints(agent) / name
    if not path.parent.is_dir():  # fail before minutes are spent on playing
        raise UserError(f"cannot write {path}: {path.parent} is no directory")
    with _progress(console, modes, episodes) as report:
        result = evaluate(agent, episodes, modes, seed, num_envs, report)
    console.print(table(result))
    try:
        durable.replace(path, (json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    console.print(printable(f"wrote {path}"), highlight=False, markup=False, emoji=False, soft_wrap=True)
    return result


def table(result: dict[str, Any]) -> Table:
    """One column per mode and, for Atari games, the reference scores beside them."""
    modes, reference = result["modes"], result["reference"]
    shown = Table(
        title=Text(
            printable(f"{result['recipe']} on {result['env']}")
            + f" after {result['step']:,} steps: {result['episodes']} episodes"
        )
    )
    shown.add_column("")
    for mode, found in modes.items():
        shown.add_column(f"{mode}\n{found['policy']}", justify="right")
    others = {name: reference[field] for name, field in _REFERENCES.items()} if reference else {}
    for name in others:
        shown.add_column(name, justify="right", style="dim")

    def add(label: str, cells: list[str], known: Sequence[str] = ()) -> None:
        shown.add_row(label, *cells, *(known or [""] * len(others)))

    found = list(modes.values())
    add("mean return", [number(x["mean"]) for x in found], [number(score) for score in others.values()])
    add("95% interval", [f"{number(x['interval'][0])} to {number(x['interval'][1])}" for x in found])
    add("standard error", [number(x["standard_error"]) for x in found])
    add("median", [number(x["median"]) for x in found])
    add("lowest to highest", [f"{number(x['min'])} to {number(x['max'])}" for x in found])
    if reference:
        game = reference["game"]
        for label, key, score in (("HNS", "hns", atari57.hns), ("SABER", "saber", atari57.saber)):
            known = [f"{100 * score(game, value):.2f}%" for value in others.values()]
            add(label, [f"{100 * x[key]:.2f}%" for x in found], known)
    lengths = [f"{number(x['length_mean'])} ({x['length_min']:,} to {x['length_max']:,})" for x in found]
    add("steps an episode", lengths)
    add("episodes cut short", [str(x["truncated"]) for x in found])
    add("different episodes", [f"{x['different']} of {len(x['returns'])}" for x in found])
    return shown


def _beside_checkpoints(agent: Agent) -> Path:
    assert agent.path is not None, "a loaded agent knows its checkpoint"
    folder = agent.path.parent
    return folder.parent if folder.name == "checkpoints" else folder


@contextmanager
def _progress(console: Console, modes: Sequence[str], episodes: int) -> Iterator[Report]:
    """A progress bar per mode in a terminal; when piped, a line every five seconds."""
    if not console.is_terminal:
        yield _plain_lines(console, episodes)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[steps]:,} steps"), console=console, transient=True) as bar:
        tasks = {mode: bar.add_task(mode, total=episodes, start=False, steps=0) for mode in modes}

        def report(mode: str, over: int, steps: int) -> None:
            if steps and not bar.tasks[tasks[mode]].started:
                bar.start_task(tasks[mode])
            bar.update(tasks[mode], completed=over, steps=steps)

        yield report


def _plain_lines(console: Console, episodes: int) -> Report:
    last = time.perf_counter()

    def report(mode: str, over: int, steps: int) -> None:
        nonlocal last
        if time.perf_counter() - last >= PLAIN_EVERY:
            last = time.perf_counter()
            console.print(f"{mode}: {over} of {episodes} episodes, {steps:,} steps", highlight=False)

    return report
