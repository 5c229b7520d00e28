"""Copies of metrics.jsonl for other tools: TensorBoard if it is installed, Weights & Biases on request."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casa.config.fields import RunConfig
from casa.errors import UserError, describe
from casa.run.event_file import EventFile

GROUPS = {
    "return": "play",
    "episode_length": "play",
    "episodes": "play",
    "hns": "play",
    "entropy": "policy",
    "advantage_scale": "policy",
    "tau": "policy",
    "rho": "policy",
    "policy_lag": "policy",
    "value": "value",
    "explained_variance": "value",
    "shaped_reward": "value",
    "gradient_norm": "loss",
    "loss": "loss",
    "chi": "angles",
    "frames": "run",
    "seconds": "run",
    "steps_per_second": "speed",
    "rss_bytes": "speed",
    "return_scale": "value",
    "reuse": "data",
    "replay_fill": "data",
    "max_priority": "data",
}
"""Metric -> the group under which TensorBoard shows it."""
_PREFIXES = {"loss_": "loss", "time_": "speed", "cos_": "angles"}


def grouped(name: str) -> str:
    """`loss_v` -> `loss/loss_v`: TensorBoard draws one section per name before the slash."""
    by_prefix = next((group for prefix, group in _PREFIXES.items() if name.startswith(prefix)), "run")
    return f"{GROUPS.get(name, by_prefix)}/{name}"


def resolve_views(config: RunConfig) -> RunConfig:
    """Resolve log.tensorboard "auto": "yes" if TensorBoard is installed."""
    if config.log.tensorboard != "auto":
        return config
    installed = importlib.util.find_spec("tensorboard") is not None
    return dataclasses.replace(config, log=dataclasses.replace(config.log, tensorboard="yes" if installed else "no"))


class Views:
    """Sends each row of metrics to the configured views. A view that fails is dropped, with one note.

    `purge`: the views forget points from this step on; a resumed run writes them again.
    """

    def __init__(self, config: RunConfig, run: Path, note: Callable[[str], None], purge: int | None = None) -> None:
        self.config, self.run, self.note, self.purge = config, run, note, purge
        self.tensorboard: Any = None
        self.wandb: Any = None

    def __enter__(self) -> Views:
        if self.config.log.tensorboard == "yes":
            if importlib.util.find_spec("tensorboard") is None:
                raise UserError("log.tensorboard is 'yes' but tensorboard is not installed; pip install tensorboard")
            with self._dropping("tensorboard"):
                self.tensorboard = EventFile(self.run / "tensorboard", self.purge)
        if self.config.log.wandb:
            if importlib.util.find_spec("wandb") is None:
                raise UserError("log.wandb is set but wandb is not installed; pip install 'casa-rl[wandb]'")
            import wandb

            self.wandb = wandb.init(
                project="casa", name=self.run.name, dir=str(self.run), config=dataclasses.asdict(self.config)
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.tensorboard is not None:
            with self._dropping("tensorboard"):
                self.tensorboard.close()
        if self.wandb is not None:
            with self._dropping("wandb"):
                self.wandb.finish()

    def write(self, row: dict[str, Any]) -> None:
        """Write the numbers of one row, by name, at its step."""
        numbers = {grouped(name): value for name, value in row.items() if isinstance(value, (int, float))}
        if self.tensorboard is not None:
            with self._dropping("tensorboard"):
                self.tensorboard.write(numbers, row["step"])
        if self.wandb is not None:
            with self._dropping("wandb"):
                self.wandb.log(numbers, step=row["step"])

    @contextmanager
    def _dropping(self, view: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            setattr(self, view, None)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else describe(error)
            self.note(f"no more goes to {view}: {reason}; metrics.jsonl holds every row")
