"""The definitions, one state and one backward pass at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from casa.diagnostics import GradientAngles
from casa.heads import HeadOutput


def _flat_gradient(net: nn.Module, scalar: Tensor) -> Tensor:
    parameters = [p for p in net.parameters() if p.requires_grad]
    found = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs]).double()


def _cos(x: Tensor, y: Tensor) -> float:
    return float(x @ y / (max(x.norm().item(), 1e-8) * max(y.norm().item(), 1e-8)))


def brute_force(
    net: nn.Module,
    forward: Callable[[], HeadOutput],
    actions: Tensor,
    q_target: Tensor,
    v_target: Tensor,
    mask: Tensor | None = None,
    chi_mask: Tensor | None = None,
) -> GradientAngles:
    out = forward()
    mask = torch.ones_like(actions, dtype=torch.bool) if mask is None else mask
    states = [tuple(i) for i in mask.nonzero().tolist()]
    value_sum = policy_sum = q_sum = torch.zeros(())
    cosines = []
    for s in states:
        q = None if out.q is None else out.q[s][actions[s]]
        grad_v = _flat_gradient(net, out.v[s])
        grad_pi = _flat_gradient(net, out.log_pi[s][actions[s]])
        value_sum = value_sum + (v_target[s] - out.v[s]).item() * grad_v
        policy_sum = policy_sum + (q_target[s] - out.v[s]).item() * grad_pi
        if q is not None:
            grad_q = _flat_gradient(net, q)
            q_sum = q_sum + (q_target[s] - q).item() * grad_q
            if chi_mask is None or chi_mask[s]:
                cosines.append(_cos(grad_q, grad_pi))
    mean_v, mean_pi, mean_q = (total / len(states) for total in (value_sum, policy_sum, q_sum))
    cos_v_pi = _cos(mean_v, mean_pi)
    if out.q is None:
        return GradientAngles(math.nan, math.nan, cos_v_pi, math.nan)
    return GradientAngles(sum(cosines) / len(cosines), _cos(mean_q, mean_pi), cos_v_pi, _cos(mean_v, mean_q))
