"""Record the calls of linear and convolution layers in one forward pass, and find the other parameters in use.

For y = W a + b, ∂f/∂W = δ aᵀ with δ = ∂f/∂y. The per-state gradients of a layer therefore need only its input a and an
autograd edge at y.
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
    name: str

    @property
    def parameters(self) -> list[nn.Parameter]:
        """W and b, without frozen ones."""
        return [p for p in self.module.parameters(recurse=False) if p.requires_grad]


@contextmanager
def recording(net: nn.Module) -> Iterator[list[Layer]]:
    """Record the calls of all layers inside `net` while the context is open; the hooks are removed when it closes."""
    layers = [Layer(module, [], name) for name, module in net.named_modules() if _is_plain(module)]
    calls_of: dict[nn.Module, list[Call]] = {layer.module: layer.calls for layer in layers}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad:
            x: Tensor = args[0] if args else kwargs["input"]
            # Keep the edge, not the tensor: after an in-place activation the tensor is the activation's output.
            calls_of[module].append(Call(x.detach(), get_gradient_edge(output), output.shape))

    handles = [module.register_forward_hook(record, with_kwargs=True) for module in calls_of]
    # autocast's cache casts a weight once for all calls, so that its uses could not be counted.
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

    A subclass that overrides `forward` must declare `input_scale` (1.0 if it computes the same map in another way);
    otherwise it goes to the per-state fallback.
    """
    for base in (nn.Linear, nn.Conv2d):
        if isinstance(module, base):
            known = type(module).forward is base.forward or hasattr(module, "input_scale")
            return known and isinstance(module.weight, nn.Parameter)  # a reparametrised weight is not a leaf
    return False


def split(
    net: nn.Module, layers: list[Layer], outputs: Iterable[Tensor], states: torch.Size, *layouts: bool
) -> tuple[list[Layer], list[nn.Parameter]]:
    """(layers whose calls cover every use of their parameters, all other parameters that the outputs depend on).

    `layouts`: the values of `recurrent` with which `by_sample` will be called.
    Each use of a parameter is one edge to its leaf in the autograd graph. If a parameter has more edges than its layer
    has calls, it is also used outside the layer, and the calls do not give its whole gradient.
    """
    nodes, uses = _walk(output.grad_fn for output in outputs if output.grad_fn is not None)
    whole: list[Layer] = []
    for layer in layers:
        calls = [call for call in layer.calls if call.edge.node in nodes]
        inputs = [call.input for call in calls]
        fits = all(by_sample(x, layer.module, states, layout) is not None for x in inputs for layout in layouts)
        if calls and fits and all(uses[p] == len(calls) for p in layer.parameters):
            whole.append(Layer(layer.module, calls, layer.name))
    covered = {p for layer in whole for p in layer.parameters}
    return whole, [p for p in net.parameters() if uses[p] and p not in covered]


def _walk(roots: Iterable[Node]) -> tuple[set[Node], Counter[Tensor]]:
    """(all nodes of the autograd graph reachable from the roots, number of uses of each leaf tensor)."""
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
    columns of [T, B]; rows come as [T', B, ...], [T'·B, ...] or [B, ...], time first. None if no layout fits, or if
    the layout is ambiguous.
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
