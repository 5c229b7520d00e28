"""Export the trained network as an ONNX model, for programs without PyTorch.

Inputs: `obs` [N, *shape], as the environment returns it; for recurrent agents also `state` [N, S], zeros at an
episode's start. Outputs: `action` (as `predict` with `deterministic`; options are counted from 0, a Box is in the
environment's units), `log_pi`, `value`, `q` if the head has Q, and `next_state` for recurrent agents. Continuous parts
have log π and Q at knots; the Gaussian heads (mean, log std) as `log_pi`, and casa-gaussian (V, τ) as `q`:
Q(s, a) = V + τ Σ_d ½ (1 - ((a_d - mean_d) / std_d)²), with actions a in [-1, 1].
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from casa.envs.spaces import encoder_of
from casa.envs.types import ObsSpec
from casa.errors import UserError
from casa.rollout.behaviour import BEHAVIOURS

if TYPE_CHECKING:
    from casa.run.agent import Agent

BATCH = 2
"""Batch size of the example used for tracing; the model accepts any batch size."""


class Exported(nn.Module):
    """(obs, state) -> greedy action, log π, V, Q and next state; the encoding of obs is part of the model."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.network, self.recurrent = agent.network, agent.recurrent
        self.greedy = BEHAVIOURS[agent.config.agent.behaviour].greedy
        spec = agent.spec.observation
        self.encode: Callable[[Tensor], Tensor] = (lambda x: x) if spec is None else tensor_encoder(spec)

    def _in_units(self, action: Tensor) -> Tensor:
        spec = self.network.actions
        if spec.kind != "box":
            return action
        low, high = torch.tensor(spec.low), torch.tensor(spec.high)
        return (low + (action.clamp(-1, 1) + 1) * ((high - low) / 2)).unflatten(-1, spec.shape or (1,))

    def forward(self, obs: Tensor, state: Tensor | None = None) -> tuple[Tensor, ...]:
        """One step for N observations."""
        sequence, after = self.network(self.encode(obs).unsqueeze(0), state, None)
        out = sequence.map(lambda x: x[0]).scaled(self.network.return_scale)
        found = [self._in_units(self.greedy(out)), out.log_pi, out.v]
        found += [] if out.q is None else [out.q]
        return tuple([*found, after] if self.recurrent else found)


def tensor_encoder(spec: ObsSpec) -> Callable[[Tensor], Tensor]:
    """`encoder_of(spec).encode` as tensor operations."""
    encoder = encoder_of(spec, "the environment")
    if spec.space == "discrete":
        first, count = int(spec.low[0]), encoder.shape[0]
        return lambda x: F.one_hot(x.long() - first, count).float()
    channels_last = encoder.kind != "vector" and len(spec.shape) == 3 and encoder.shape != spec.shape
    one, zero = np.ones((1, *spec.shape)), np.zeros((1, *spec.shape))
    # The encoder is affine: encode(0) is its offset, encode(1) - encode(0) its scale.
    offset, unit = (torch.as_tensor(encoder.encode(x.astype(spec.dtype)).astype(np.float32)) for x in (zero, one))

    def encode(x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2) if channels_last else x
        x = x.reshape(x.shape[0], *encoder.shape)
        return x if encoder.kind == "image" else x.float() * (unit - offset) + offset

    return encode


def export(agent: Agent, path: Path) -> Path:
    """Write the model and check the file; returns its path."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"to_onnx needs {package}, which is not installed; pip install 'casa-rl[onnx]'")
    import onnx

    spec = agent.spec.observation
    shape = agent.spec.obs_shape if spec is None else spec.shape
    dtype = agent.spec.obs_dtype if spec is None else np.dtype(spec.dtype)
    model = Exported(agent).eval().cpu()
    inputs: list[Tensor] = [torch.as_tensor(np.zeros((BATCH, *shape), dtype))]
    names, free = ["obs"], torch.export.Dim("N")
    if agent.recurrent:
        inputs.append(agent.network.initial_state(BATCH))
        names.append("state")
    outputs = ["action", "log_pi", "value"] + (["q"] if agent.network.head.has_q else [])
    outputs += ["next_state"] if agent.recurrent else []
    try:
        torch.onnx.export(
            model,
            tuple(inputs),
            path,
            input_names=names,
            output_names=outputs,
            dynamic_shapes=tuple({0: free} for _ in inputs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    finally:
        agent.network.to(agent.device)
    onnx.checker.check_model(str(path))
    return path
