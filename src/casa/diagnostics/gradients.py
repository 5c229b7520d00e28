"""Inner products of gradients: of weighted batch sums by autograd, and of all single states from recorded layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from casa.diagnostics.capture import Call, Layer, by_sample
from casa.diagnostics.products import Products

Deltas = list[Tensor | None]
"""The gradients of one objective at the outputs of each call of a layer; None: it does not depend on that call."""


def _grad(
    objective: Tensor, inputs: Sequence[Tensor] | Sequence[GradientEdge], weights: Tensor
) -> tuple[Tensor | None, ...]:
    """∂(Σ_s w(s) f(s)) / ∂inputs; None for inputs that f does not depend on."""
    if not inputs or not objective.requires_grad:
        return (None,) * len(inputs)
    # The sum instead of `weights` as grad_outputs: their shape check imports SymPy, which adds 0.3 s to every run.
    total = (weights.to(objective.dtype) * objective).sum()
    return torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)


def batch_products(objectives: list[Tensor], weights: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """⟨Σ_s w_f(s) ∇f(s), Σ_s w_g(s) ∇g(s)⟩ for all pairs of F objectives, [F, F], by one backward pass each."""
    found = [_grad(f, parameters, w) for f, w in zip(objectives, weights, strict=True)]
    total = weights.new_zeros(len(objectives), len(objectives), dtype=torch.float64)
    for i, parameter in enumerate(parameters):
        rows = [gradient[i] for gradient in found]
        gradients = torch.stack([(torch.zeros_like(parameter) if g is None else g).flatten() for g in rows])
        total += gradients @ gradients.mT
    return total


def output_gradients(layers: list[Layer], objective: Tensor, weights: Tensor) -> list[Deltas]:
    """∂(Σ_s w(s) f(s)) / ∂y at the outputs y of every layer's calls."""
    found = iter(_grad(objective, [call.edge for layer in layers for call in layer.calls], weights))
    return [[next(found) for _ in layer.calls] for layer in layers]


def add_layer(
    total: Products,
    layer: Layer,
    deltas: Sequence[Deltas],
    states: torch.Size,
    recurrent: bool,
    chosen: slice = slice(None),
) -> None:
    """Add a layer's inner products for the `chosen` samples, from the gradients of each objective at its outputs."""

    def rows(x: Tensor) -> Tensor:
        found = by_sample(x, layer.module, states, recurrent)
        assert found is not None, "split() leaves only layers that fit"
        return found[chosen]

    found = [
        [rows(_or_zeros(delta, call)) for delta, call in zip(calls, layer.calls, strict=True)] for calls in deltas
    ]
    total.add(layer.module, [rows(call.input) for call in layer.calls], found)


def state_products(
    layers: list[Layer],
    rest: list[nn.Parameter],
    objectives: list[Tensor],
    weights: Tensor | None,
    samples: Tensor,
    states: torch.Size,
    recurrent: bool,
) -> tuple[Tensor, Tensor]:
    """(⟨∇f(s), ∇g(s)⟩ of the first two objectives for every sample [S, 2, 2], batch products [F, F]).

    Each objective is [S], over independent samples, so the gradient of its sum with respect to a layer's output holds
    the gradient of every sample. The batch products need `weights` [F, S]. `rest` are the parameters outside the
    layers; their gradients are computed one state at a time, where `samples` [S] is true.
    """
    total = Products(len(samples), weights, samples.device)
    found = [output_gradients(layers, f, torch.ones_like(f)) for f in objectives]
    for i, layer in enumerate(layers):
        add_layer(total, layer, [deltas[i] for deltas in found], states, recurrent)
    if rest:
        add_rest(total, rest, objectives, samples.nonzero().flatten().tolist())
        if weights is not None:
            total.batch += batch_products(objectives, weights, rest)
    return total.per_sample, total.batch


def add_rest(total: Products, rest: list[nn.Parameter], objectives: list[Tensor], samples: Sequence[int]) -> None:
    """Add the inner products of the parameters outside the layers, by two backward passes for each of `samples`.

    The objectives are [S], over the samples of `total`.
    """
    ones = total.per_sample.new_ones(2)
    for s in samples:
        total.per_sample[s] += batch_products([f[s] for f in objectives[:2]], ones, rest)


def _or_zeros(delta: Tensor | None, call: Call) -> Tensor:
    return call.input.new_zeros(()).expand(call.shape) if delta is None else delta
