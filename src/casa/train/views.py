"""Views of metrics.jsonl elsewhere: TensorBoard where it is installed, Weights & Biases on request."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from casa.errors import UserError
from casa.schema import RunConfig


class Views:
    """Sends each row of metrics to the views that were chosen."""

    def __init__(self, config: RunConfig, run: Path) -> None:
        self.config, self.run = config, run
        self.tensorboard: Any = None
        self.wandb: Any = None

    def __enter__(self) -> Views:
        installed = importlib.util.find_spec("tensorboard") is not None
        if self.config.log.tensorboard == "yes" and not installed:
            raise UserError("log.tensorboard is 'yes' but tensorboard is not installed; pip install tensorboard")
        if self.config.log.tensorboard != "no" and installed:
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
        """One row of metrics: its numbers, by name, at its step."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        if self.tensorboard is not None:
            for name, value in numbers.items():
                self.tensorboard.add_scalar(name, value, row["step"])
        if self.wandb is not None:
            self.wandb.log(numbers, step=row["step"])
