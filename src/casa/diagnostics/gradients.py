"""Inner products of gradients: of weighted batch sums by autograd, and of all single states from recorded layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from casa.diagnostics.capture import Call, Layer, by_sample
from casa.diagnostics.products import Products


def _grad(
    objective: Tensor, inputs: Sequence[Tensor] | Sequence[GradientEdge], weights: Tensor
) -> tuple[Tensor | None, ...]:
    """∂(Σ_s w(s) f(s)) / ∂inputs; None for inputs that f does not depend on."""
    if not inputs or not objective.requires_grad:
        return (None,) * len(inputs)
    return torch.autograd.grad(objective, inputs, weights.to(objective.dtype), retain_graph=True, allow_unused=True)


def batch_products(objectives: list[Tensor], weights: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """⟨Σ_s w_f(s) ∇f(s), Σ_s w_g(s) ∇g(s)⟩ for all pairs of F objectives, [F, F], by one backward pass each."""
    found = [_grad(f, parameters, w) for f, w in zip(objectives, weights, strict=True)]
    total = weights.new_zeros(len(objectives), len(objectives), dtype=torch.float64)
    for i, parameter in enumerate(parameters):
        rows = [gradient[i] for gradient in found]
        gradients = torch.stack([(torch.zeros_like(parameter) if g is None else g).flatten() for g in rows])
        total += gradients @ gradients.mT
    return total


def state_products(
    layers: list[Layer],
    rest: list[nn.Parameter],
    objectives: list[Tensor],
    weights: Tensor | None,
    valid: Tensor,
    states: torch.Size,
    recurrent: bool,
) -> tuple[Tensor, Tensor]:
    """(⟨∇f(s), ∇g(s)⟩ of the first two objectives for every sample [S, 2, 2], batch products [F, F]).

    Each objective is [S], over independent samples, so the gradient of its sum with respect to a layer's output holds
    the gradient of every sample. The batch products need `weights` [F, S]. `rest` are the parameters outside the
    layers; their gradients are computed one state at a time.
    """
    total = Products(len(valid), weights, valid.device)
    edges = [call.edge for layer in layers for call in layer.calls]
    found = [iter(_grad(f, edges, torch.ones_like(f))) for f in objectives]
    for layer in layers:
        deltas = [
            [_rows(_or_zeros(next(deltas_of), call), layer, states, recurrent) for call in layer.calls]
            for deltas_of in found
        ]
        total.add(layer.module, [_rows(call.input, layer, states, recurrent) for call in layer.calls], deltas)
    if rest:
        for s in valid.nonzero().flatten().tolist():
            total.per_sample[s] += batch_products([f[s] for f in objectives[:2]], valid.new_ones(2), rest)
        if weights is not None:
            total.batch += batch_products(objectives, weights, rest)
    return total.per_sample, total.batch


def _or_zeros(delta: Tensor | None, call: Call) -> Tensor:
    return call.input.new_zeros(()).expand(call.shape) if delta is None else delta


def _rows(x: Tensor, layer: Layer, states: torch.Size, recurrent: bool) -> Tensor:
    rows = by_sample(x, layer.module, states, recurrent)
    assert rows is not None, "split() leaves only layers that fit"
    return rows
