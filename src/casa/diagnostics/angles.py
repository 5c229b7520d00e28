"""χ and the angles between the batch gradients of L_V, L_Q and J (the paper's motivation and basic setup)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from casa.diagnostics.capture import Layer, recording, split
from casa.diagnostics.gradients import batch_products, state_products
from casa.heads import HeadOutput

_NORM_FLOOR = 1e-8  # lower bound of gradient norms in cosines


class GradientAngles(NamedTuple):
    """χ, cos β = cos⟨∇L_Q, ∇J⟩, cos⟨∇L_V, ∇J⟩, cos⟨∇L_V, ∇L_Q⟩; without Q, all but cos_v_pi are NaN."""

    chi: float
    cos_beta: float
    cos_v_pi: float
    cos_v_q: float


def gradient_angles(
    net: nn.Module,
    forward: Callable[[], HeadOutput],
    actions: Tensor,
    q_target: Tensor,
    v_target: Tensor,
    mask: Tensor | None = None,
    *,
    recurrent: bool = False,
    every: int = 1,
) -> GradientAngles:
    """χ = E[cos⟨∇Q(s,a), ∇log π(a|s)⟩]; cosines between E[(Q^ - Q) ∇Q], E[(Q^ - V) ∇log π] and E[(V^ - V) ∇V].

    Exact, over all parameters of `net`. Expectations are means over the states where `mask` is true; norms are at
    least 1e-8. `forward()` runs `net` on the states and returns its (V, Q, log π). `actions`, `q_target`, `v_target`
    and `mask` have the states' shape, [N] or [T, B]; for actions of several parts, `actions` has one more axis.

    States must be independent (no batch norm). With `recurrent`, the shape is [T, B], the B columns must be
    independent, and gradients are back-propagated through time. χ then takes two backward passes per time step;
    `every=k` computes it on every k-th time step only (the other angles still use the whole batch).

    Cheap for `nn.Linear` and `nn.Conv2d` layers that keep the states in order on their leading axes: [N·k, ...], in a
    recurrent net [T, B, ...], [T·B, ...] or [B, ...]. Parameters used in any other way cost two backward passes per
    state. Pass the uncompiled net: `torch.compile` hides its layers.
    """
    shape = v_target.shape
    states = actions if actions.dim() <= len(shape) else actions[..., 0]
    for name, tensor in (("actions", states), ("q_target", q_target), ("mask", mask)):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have the shape of v_target {tuple(shape)}, got {tuple(tensor.shape)}")
    if recurrent and len(shape) != 2:
        raise ValueError(f"a recurrent net's states are [T, B], got targets of shape {tuple(shape)}")
    if every != 1 and not (recurrent and 1 <= every <= shape[0]):
        raise ValueError(f"every must be 1, or at most T in a recurrent net, got {every} for {tuple(shape)}")
    with torch.inference_mode(False), torch.enable_grad():
        with recording(net) as layers:
            out = forward()
        if out.v.shape != shape:
            raise ValueError(f"V must have the shape of v_target {tuple(shape)}, got {tuple(out.v.shape)}")
        valid = torch.ones(shape, dtype=torch.bool, device=v_target.device) if mask is None else mask.bool()
        if not valid.any():
            return GradientAngles(math.nan, math.nan, math.nan, math.nan)
        with torch.autocast(out.v.device.type, enabled=False):  # inner products need full precision
            return _angles(net, layers, out, actions, q_target, v_target, valid, every if recurrent else None)


def _angles(
    net: nn.Module,
    layers: list[Layer],
    out: HeadOutput,
    actions: Tensor,
    q_target: Tensor,
    v_target: Tensor,
    valid: Tensor,
    every: int | None,
) -> GradientAngles:
    """The angles from one recorded forward pass; `every` is None for a feed-forward net."""
    log_pi, v = out.log_prob(actions), out.v
    parameters = [p for p in net.parameters() if p.requires_grad]
    if out.q is None:
        weights = _weights([q_target - v, v_target - v], valid)
        found = cosines(batch_products([log_pi, v], weights, parameters))
        return GradientAngles(math.nan, math.nan, found[0, 1].item(), math.nan)

    q, shape = out.q_of(actions), v.shape
    objectives = [q, log_pi, v]
    weights = _weights([q_target - q, q_target - v, v_target - v], valid)
    layers, rest = split(net, layers, objectives, shape, every is not None)
    if every is None:
        valid, flat = valid.flatten(), [objective.flatten() for objective in objectives]
        states, gram = state_products(layers, rest, flat, weights.flatten(1), valid, shape, recurrent=False)
    else:
        gram = batch_products(objectives, weights, parameters)
        times = range(every - 1, shape[0], every)
        steps = [
            state_products(layers, rest, [q[t], log_pi[t]], None, valid[t], shape, recurrent=True)[0] for t in times
        ]
        states, valid = torch.stack(steps), valid[every - 1 :: every]
    found = cosines(gram)
    return GradientAngles(
        chi=cosines(states)[..., 0, 1][valid].mean().item(),
        cos_beta=found[0, 1].item(),
        cos_v_pi=found[1, 2].item(),
        cos_v_q=found[0, 2].item(),
    )


def _weights(errors: list[Tensor], valid: Tensor) -> Tensor:
    """error / number of valid states; 0 in invalid states, whose targets may be NaN."""
    return torch.stack([error.detach().where(valid, 0.0) for error in errors]) / valid.sum()


def cosines(gram: Tensor) -> Tensor:
    """⟨x, y⟩ / (max(|x|, 1e-8) max(|y|, 1e-8)) from Gram matrices [..., F, F], clamped to [-1, 1] against rounding."""
    norms = gram.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().clamp_min(_NORM_FLOOR)
    return (gram / (norms.unsqueeze(-1) * norms.unsqueeze(-2))).clamp(-1, 1)
