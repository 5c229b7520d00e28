"""Record what each linear and convolution layer saw in one forward pass, and find what else was used.

y = W a + b gives ∂f/∂W = δ aᵀ with δ = ∂f/∂y: the recorded a, and an autograd edge at y, are all that the per-state
gradients of a layer need.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


@dataclass(frozen=True)
class Call:
    """One use of a layer: its input a, the edge at its output y in the autograd graph, and y's shape."""

    input: Tensor
    edge: GradientEdge
    shape: torch.Size


@dataclass(frozen=True)
class Layer:
    """An `nn.Linear` or `nn.Conv2d` and its calls; a shared or recurrent layer has several."""

    module: nn.Linear | nn.Conv2d
    calls: list[Call]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """W and b, as far as they are trained."""
        return [p for p in self.module.parameters(recurse=False) if p.requires_grad]


@contextmanager
def recording(net: nn.Module) -> Iterator[list[Layer]]:
    """Record the calls of all layers inside `net` while the context is open; its hooks go when it closes."""
    layers = [Layer(module, []) for module in net.modules() if _is_plain(module)]
    calls_of: dict[nn.Module, list[Call]] = {layer.module: layer.calls for layer in layers}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad:
            x: Tensor = args[0] if args else kwargs["input"]
            # The edge, not the tensor: an in-place activation would move the tensor to behind the activation.
            calls_of[module].append(Call(x.detach(), get_gradient_edge(output), output.shape))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in calls_of]
    # autocast would cast a weight once for all calls, and its uses could no longer be counted.
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield layers
    finally:
        torch.set_autocast_cache_enabled(cached)
        for handle in handles:
            handle.remove()


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Whether the module's output is W (s·a) + b of its own parameters, with s = `input_scale` or 1.

    A subclass with a forward of its own must declare `input_scale` (1.0 where it computes the same map in another
    way); without it, it is left to the per-state fallback.
    """
    for base in (nn.Linear, nn.Conv2d):
        if isinstance(module, base):
            known = type(module).forward is base.forward or hasattr(module, "input_scale")
            return known and isinstance(module.weight, nn.Parameter)  # a reparametrised weight is no leaf
    return False


def split(
    net: nn.Module, layers: list[Layer], outputs: Iterable[Tensor], states: torch.Size, recurrent: bool
) -> tuple[list[Layer], list[nn.Parameter]]:
    """(layers whose every use was recorded state by state, all other parameters that the outputs depend on).

    Each use of a parameter is one edge into its leaf in the autograd graph. Where a layer's parameter has more edges
    than the layer has calls, it was also used outside of the layer, and the calls are not its whole gradient.
    """
    nodes, uses = _walk(output.grad_fn for output in outputs if output.grad_fn is not None)
    whole: list[Layer] = []
    for layer in layers:
        calls = [call for call in layer.calls if call.edge.node in nodes]
        fits = all(by_sample(call.input, layer.module, states, recurrent) is not None for call in calls)
        if calls and fits and all(uses[p] == len(calls) for p in layer.parameters):
            whole.append(Layer(layer.module, calls))
    covered = {p for layer in whole for p in layer.parameters}
    return whole, [p for p in net.parameters() if uses[p] and p not in covered]


def _walk(roots: Iterable[Node]) -> tuple[set[Node], Counter[Tensor]]:
    """All nodes of the graph behind the roots, and how often each leaf tensor is used in it."""
    nodes, uses = set(roots), Counter[Tensor]()
    stack = list(nodes)
    while stack:
        for parent, _ in stack.pop().next_functions:
            if parent is None:
                continue
            leaf = getattr(parent, "variable", None)
            if leaf is not None:
                uses[leaf] += 1
            elif parent not in nodes:
                nodes.add(parent)
                stack.append(parent)
    return nodes, uses


def by_sample(x: Tensor, module: nn.Module, states: torch.Size, recurrent: bool) -> Tensor | None:
    """[..., features] -> [S, k, features]: the k rows (or images) that belong to each independent sample.

    Feed-forward: the samples are the N states, in the order of the leading axes. Recurrent: the samples are the B
    columns of [T, B]; rows come as [T', B, ...], [T'·B, ...] or [B, ...], time first. None where neither fits, and
    where one cannot tell.
    """
    axes = 3 if isinstance(module, nn.Conv2d) else 1
    lead, tail = x.shape[:-axes], x.shape[-axes:]
    if not lead:
        return None
    if not recurrent:
        n = math.prod(states)
        return x.reshape(n, -1, *tail) if math.prod(lead) % n == 0 else None
    steps, batch = states
    paired = lead[1:2] == (batch,)
    if lead[:2] == states or (paired and lead[0] not in (batch, steps * batch)):
        rows = lead[0]
    elif not paired and lead[0] % batch == 0:
        rows = lead[0] // batch
    else:
        return None
    return x.reshape(rows, batch, -1, *tail).transpose(0, 1).flatten(1, 2)
