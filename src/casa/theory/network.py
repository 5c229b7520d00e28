"""A small float64 network with a shared backbone, and exact per-state gradients of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

NORM_FLOOR = 1e-8  # the paper's lower bound of norms in cosines
FEATURES = 5
HIDDEN = 16


class SmallNet(nn.Module):
    """Observations [N, 5] -> {"value": [N], "advantage", "logits", "q": [N, A]}, all on one backbone.

    Every output has two separate fully connected layers, as in the paper.
    """

    def __init__(self, generator: torch.Generator, num_actions: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh())
        sizes = {"value": 1, "advantage": num_actions, "logits": num_actions, "q": num_actions}
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, size))
                for name, size in sizes.items()
            }
        )
        self.double()
        with torch.no_grad():
            # Use the given generator, so that weights do not depend on torch's global one.
            for parameter in self.parameters():
                scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(scale * noise)

    def forward(self, observations: Tensor) -> dict[str, Tensor]:
        """All outputs by name."""
        hidden = self.backbone(observations)
        outputs = {name: head(hidden) for name, head in self.heads.items()}
        outputs["value"] = outputs["value"].squeeze(-1)
        return outputs


def observations(generator: torch.Generator, count: int = 6) -> Tensor:
    """`count` random observations [N, 5]."""
    return torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)


def jacobian(outputs: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """∂ outputs / ∂ θ: [...] -> [..., |θ|], one row for every scalar output; 0 where θ is not used."""
    flat = outputs.reshape(-1)
    rows = torch.autograd.grad(
        flat,
        list(parameters),
        torch.eye(len(flat), dtype=flat.dtype),
        retain_graph=True,
        is_grads_batched=True,
        allow_unused=True,
    )
    full = [
        torch.zeros(len(flat), parameter.numel(), dtype=flat.dtype) if row is None else row.flatten(1)
        for row, parameter in zip(rows, parameters, strict=True)
    ]
    return torch.cat(full, dim=-1).view(*outputs.shape, -1)


def gradient(scalar: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """∇ scalar as one vector [|θ|]."""
    return jacobian(scalar.reshape(1), parameters)[0]


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """cos<x, y> along the last axis, with norms of at least 1e-8."""
    norms = x.norm(dim=-1).clamp(min=NORM_FLOOR) * y.norm(dim=-1).clamp(min=NORM_FLOOR)
    return (x * y).sum(-1) / norms


def chi(grad_q: Tensor, grad_log_pi: Tensor, pi: Tensor) -> float:
    """χ = E_π[cos<∇Q, ∇ log π>]: the mean over states [N], exact over actions [N, A]."""
    return float((pi * cosines(grad_q, grad_log_pi)).sum(-1).mean())


def relative_error(x: Tensor, y: Tensor) -> float:
    """max |x - y| / max |y|."""
    return float((x - y).abs().max() / y.abs().max())
