"""The whole network: backbone, optional recurrent core, and two fully connected layers per output.

The outputs read the core and, past it, the backbone. With the core alone between them the agents do not learn from
images: Adam's first steps, which raise V from 0 to its mean, grow the features along their constant part until every
gate is saturated, and what distinguishes one state from another is lost (docs/training.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from casa.actions import ActionSpec
from casa.heads import HEADS, HeadOutput
from casa.nn.backbones import BACKBONES, as_input
from casa.nn.core import LSTMCore


class OutputHead(nn.Module):
    """y = W₂ relu(W₁ x + b₁) + b₂, small at the start so that the first policy is nearly uniform."""

    def __init__(self, inputs: int, outputs: int, hidden: int = 256) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, hidden)
        self.linear2 = nn.Linear(hidden, outputs)
        with torch.no_grad():
            self.linear2.weight.mul_(0.1)
            self.linear2.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        out: Tensor = self.linear2(torch.relu(self.linear1(x)))
        return out


class Network(nn.Module):
    """x = backbone(o), (V, Q, log π) = head(outputs([x, core(x)])) over a sequence [T, B]; without a core of x alone.

    The recurrent state is one tensor [B, state_size]; state_size is 0 without a core.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        actions: ActionSpec | int,
        *,
        backbone: str = "impala-shallow",
        lstm: int = 0,
        head: str = "casa",
        tau: float = 1.0,
        hidden: int = 256,
    ) -> None:
        super().__init__()
        self.actions = ActionSpec.discrete(actions) if isinstance(actions, int) else actions
        self.head = HEADS[head]
        if self.actions.sizes is not None and not self.head.takes_sizes:
            raise ValueError(f"head {head!r} is for a single discrete action, not for {self.actions}; use 'casa'")
        self.tau = tau
        self.backbone = BACKBONES[backbone](obs_shape, hidden)
        self.core = LSTMCore(hidden, lstm) if lstm else None
        width = hidden + lstm
        self.outputs = nn.ModuleDict(
            {
                name: OutputHead(width, 1 if name == "value" else self.actions.width, hidden)
                for name in self.head.outputs
            }
        )
        self.state_size = 2 * lstm

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Zeros [B, state_size]."""
        return torch.zeros(batch, self.state_size, device=device)

    def forward(
        self, obs: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[HeadOutput, Tensor]:
        """((V, Q, log π) [T, B, ...], next state) from obs [T, B, *obs_shape], state [B, S], starts [T, B]."""
        steps, batch = obs.shape[:2]
        if state is None:
            state = self.initial_state(batch, obs.device)
        x = self.backbone(obs.flatten(0, 1))
        if self.core is not None:
            if starts is None:
                starts = torch.zeros(steps, batch, dtype=torch.bool, device=obs.device)
            y, state = self.core(x.unflatten(0, (steps, batch)), state, starts)
            x = torch.cat((x, as_input(y.flatten(0, 1), self.core.from_input)), -1)
        raw = {name: module(x) for name, module in self.outputs.items()}
        out = self.head({k: v.squeeze(-1) if k == "value" else v for k, v in raw.items()}, self.tau, self.actions.sizes)
        return out.map(lambda y: y.unflatten(0, (steps, batch))), state
