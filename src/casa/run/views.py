"""Copies of metrics.jsonl for other tools: TensorBoard if it is installed, Weights & Biases on request."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from casa.config.fields import RunConfig
from casa.errors import UserError

GROUPS = {
    "return": "play",
    "episode_length": "play",
    "episodes": "play",
    "hns": "play",
    "entropy": "policy",
    "advantage_scale": "policy",
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
    """Sends each row of metrics to the configured views."""

    def __init__(self, config: RunConfig, run: Path) -> None:
        self.config, self.run = config, run
        self.tensorboard: Any = None
        self.wandb: Any = None

    def __enter__(self) -> Views:
        installed = importlib.util.find_spec("tensorboard") is not None
        if self.config.log.tensorboard == "yes" and not installed:
            raise UserError("log.tensorboard is 'yes' but tensorboard is not installed; pip install tensorboard")
        if self.config.log.tensorboard == "yes":
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(self.run / "tensorboard"))
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
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()

    def write(self, row: dict[str, Any]) -> None:
        """Write the numbers of one row, by name, at its step."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        if self.tensorboard is not None:
            for name, value in numbers.items():
                self.tensorboard.add_scalar(grouped(name), value, row["step"])
        if self.wandb is not None:
            self.wandb.log({grouped(name): value for name, value in numbers.items()}, step=row["step"])
