"""The Python API: `run = casa.train(recipe="casa", env="Breakout", steps=1_000_000)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from casa.config.fields import RunConfig
from casa.config.load import make_config, read_run
from casa.envs.suggest import suggest_preset
from casa.errors import UserError
from casa.run import training
from casa.run.agent import Agent, load
from casa.run.callbacks import Callback
from casa.run.digest import REPORT, write_report
from casa.run.evaluate import MODES, evaluate
from casa.run.interrupt import Interrupted
from casa.run.jsonl import read_jsonl
from casa.run.rundir import read_config
from casa.runtime.output import sturdy_console

Env = str | Callable[..., Any]


class Run:
    """A run directory: its configuration, its logs and its trained agent.

    `os.fspath(run)` is the directory, so `casa.load` and every tool that takes a path also takes a run.
    """

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.path, self.trust = Path(path), trust

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        row = self.row
        if not row:
            return f"<casa.Run {self.path}: nothing reported yet>"
        score = "no episode yet" if row["return"] is None else f"return {row['return']:.4g}"
        return f"<casa.Run {self.path}: {self.config.recipe} on {self.config.env.id}, {row['step']:,} steps, {score}>"

    @property
    def config(self) -> RunConfig:
        """The complete configuration, read from config.yaml."""
        file = self.path / "config.yaml"
        return read_run(read_config(file), str(file), self.trust)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, oldest first."""
        return list(read_jsonl(self.path / "metrics.jsonl"))

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """Every finished episode: step, environment, score, length."""
        return list(read_jsonl(self.path / "episodes.jsonl"))

    @property
    def row(self) -> dict[str, Any]:
        """The latest row of metrics, empty if there is none yet."""
        return next(reversed(self.metrics), {})

    def load(self, which: str | int = "latest", **options: Any) -> Agent:
        """Load the trained agent; options as in `casa.load`."""
        return load(self.path, which, trust=self.trust, **options)

    def evaluate(
        self, episodes: int = 30, modes: Sequence[str] = MODES, seed: int = 0, which: str | int = "latest"
    ) -> dict[str, Any]:
        """Play new episodes with the agent; returns the mean return, its interval and the raw data for each mode."""
        return evaluate(self.load(which), episodes, modes, seed)

    def report(self, to: str | Path | None = None) -> Path:
        """Write the run's report as one HTML file (None: report.html in the run directory); returns its path."""
        return write_report([self.path], self.path / REPORT if to is None else Path(to))

    def resume(
        self,
        steps: int | None = None,
        lr: float | None = None,
        callbacks: Sequence[Callback] = (),
        quiet: bool = False,
    ) -> Run:
        """Continue to `steps` agent steps in total (None: as configured), from learning rate `lr`, if given."""
        with suppress(Interrupted):
            training.resume(self.path, _console(quiet), steps, self.trust, lr=lr, callbacks=callbacks)
        return self


def train(
    recipe: str | None = None,
    env: Env = "ALE/Breakout-v5",
    steps: int | None = None,
    *,
    seed: int = 0,
    preset: str | None = None,
    run_dir: str | Path | None = None,
    plugins: Sequence[str] = (),
    callbacks: Sequence[Callback | str] = (),
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train an agent until all steps are taken, an interrupt, or a callback's `stop`; returns its run.

    `env`: a name as on the command line, or a module-level function that creates an environment. `recipe`, `preset`:
    None takes what fits the environment. `settings`: any configuration field, nested or with double underscores for
    dots: learner={"lr": 1e-4} or learner__lr=1e-4.
    `callbacks`: objects, or names of registered callbacks, which are saved in the configuration. Progress is shown in
    the terminal or notebook unless `quiet`. On the command line: `casa train`.
    """
    for callback in [callbacks] if isinstance(callbacks, str) else callbacks:
        if not isinstance(callback, (str, Callback)):
            raise UserError(f"callbacks must be casa.Callback objects or names of registered ones, got {callback!r}")
    if isinstance(callbacks, str):
        callbacks = [callbacks]
    given: dict[str, Any] = {
        "recipe": recipe,
        "preset": preset,
        "env.id": env if isinstance(env, str) else env_name(env),
        "steps": steps,
        "seed": seed,
        "run_dir": None if run_dir is None else str(run_dir),
        "plugins": list(plugins),
        "callbacks": [callback for callback in callbacks if isinstance(callback, str)],
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    config = make_config(given, suggest_preset)
    with suppress(Interrupted):
        training.train(config, _console(quiet), [callback for callback in callbacks if isinstance(callback, Callback)])
    return Run(config.run_dir, trust=True)


def env_name(make: Callable[..., Any]) -> str:
    """`module:function` of a function that creates an environment: resume and load find it by that name."""
    module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
    found: Any = sys.modules.get(module)
    found_module = found
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not make:
        raise UserError(
            f"env {name or make!r} cannot be found by its name in module {module!r}; "
            "define it at the top level of a module, or register it with Gymnasium and pass the id"
        )
    if module == "__main__":
        file = getattr(found_module, "__file__", None)
        if file is None:  # a notebook: its functions can be found in this process only
            return f"{module}:{name}"
        module = Path(file).stem
    return f"{module}:{name}"


def _console(quiet: bool) -> Console:
    return sturdy_console(quiet)
