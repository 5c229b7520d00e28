"""From network outputs to (V, Q, log π): every function approximation of the paper, as pure functions.

`sg` is stop-gradient (`Tensor.detach`). All functions take any leading shape: `advantage`, `logits` and `q` are
`[..., A]`, `value` is `[...]`. Each returns `HeadOutput(v [...], q [..., A] or None, log_pi [..., A])`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class HeadOutput(NamedTuple):
    """(V(s) [...], Q(s, ·) [..., A] or None where the system has no Q, log π(·|s) [..., A])."""

    v: Tensor
    q: Tensor | None
    log_pi: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> HeadOutput:
        """(f(V), f(Q), f(log π)), where a missing Q stays missing."""
        return HeadOutput(function(self.v), None if self.q is None else function(self.q), function(self.log_pi))


def log_softmax(logits: Tensor, tau: float = 1.0) -> Tensor:
    """log π = x/τ - log Σ exp(x/τ), in fp32 or better, exact for large x and small τ.

    The maximum is subtracted before the division, so that x = 1e4 and τ = 1e-3 lose no digits.
    """
    if not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    x = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax((x - x.detach().amax(-1, keepdim=True)) / tau, -1)


def _mean_under(probabilities: Tensor, x: Tensor) -> Tensor:
    """E_π[x] = Σ_a π(a) x(a), keeping the last axis; centred first, so that a common offset costs no digits."""
    offset = x.detach().amax(-1, keepdim=True)
    return (probabilities * (x - offset)).sum(-1, keepdim=True) + offset


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def casa_head(advantage: Tensor, value: Tensor, tau: float) -> HeadOutput:
    """π = softmax(A/τ), Q = A - sg(π)·A + sg(V) (eq. 6): the gradient of Q is τ times that of log π."""
    return _advantage_head(advantage, value, tau, stop_pi=True, stop_v=True, centre=True)


def type1_head(advantage: Tensor, value: Tensor, tau: float) -> HeadOutput:
    """π = softmax(A/τ), Q = A - π·A + sg(V): CASA without the stop-gradient on π."""
    return _advantage_head(advantage, value, tau, stop_pi=False, stop_v=True, centre=True)


def type2_head(advantage: Tensor, value: Tensor, tau: float) -> HeadOutput:
    """π = softmax(A/τ), Q = A - sg(π)·A + V: CASA without the stop-gradient on V."""
    return _advantage_head(advantage, value, tau, stop_pi=True, stop_v=False, centre=True)


def type3_head(advantage: Tensor, value: Tensor, tau: float) -> HeadOutput:
    """π = softmax(A/τ), Q = A + sg(V): dueling, with the stop-gradient on V."""
    return _advantage_head(advantage, value, tau, stop_pi=True, stop_v=True, centre=False)


def dueling_head(advantage: Tensor, value: Tensor, tau: float) -> HeadOutput:
    """π = softmax(A/τ), Q = A + V: dueling; type 4 and, with π as a surrogate, R2D2."""
    return _advantage_head(advantage, value, tau, stop_pi=True, stop_v=False, centre=False)


def _advantage_head(
    advantage: Tensor, value: Tensor, tau: float, *, stop_pi: bool, stop_v: bool, centre: bool
) -> HeadOutput:
    advantage, value = _wide(advantage), _wide(value)
    log_pi = log_softmax(advantage, tau)
    q = advantage
    if centre:
        pi = log_pi.exp()
        q = q - _mean_under(pi.detach() if stop_pi else pi, advantage)
    q = q + (value.detach() if stop_v else value).unsqueeze(-1)
    return HeadOutput(value, q, log_pi)


def separate_q_head(advantage: Tensor, value: Tensor, q: Tensor, tau: float) -> HeadOutput:
    """π = softmax(A/τ), Q = Q_θ (type 5): Q has an output of its own."""
    return HeadOutput(_wide(value), _wide(q), log_softmax(advantage, tau))


def actor_critic_head(logits: Tensor, value: Tensor) -> HeadOutput:
    """π = softmax(logit), V = V_θ, no Q: PPO and IMPALA."""
    return HeadOutput(_wide(value), None, log_softmax(logits))


def q_critic_head(logits: Tensor, q: Tensor) -> HeadOutput:
    """π = softmax(logit), V = sg(π)·Q (PPO ver. 1 and 2): the gradient of V flows into Q alone."""
    log_pi, q = log_softmax(logits), _wide(q)
    return HeadOutput(_mean_under(log_pi.detach().exp(), q).squeeze(-1), q, log_pi)


@dataclass(frozen=True)
class Head:
    """A function approximation: which outputs the network has, and how they become (V, Q, log π).

    `outputs` names the network outputs in the order of `function`'s arguments: "value" is [...], others [..., A].
    `tempered` heads take τ, and their policy gradient J carries the factor τ (eq. 8).
    """

    outputs: tuple[str, ...]
    function: Callable[..., HeadOutput]
    tempered: bool

    def __call__(self, outputs: dict[str, Tensor], tau: float = 1.0) -> HeadOutput:
        """(V, Q, log π) from named network outputs."""
        tensors = [outputs[name] for name in self.outputs]
        return self.function(*tensors, tau) if self.tempered else self.function(*tensors)


HEADS: dict[str, Head] = {
    "actor-critic": Head(("logits", "value"), actor_critic_head, False),
    "q-critic": Head(("logits", "q"), q_critic_head, False),
    "casa": Head(("advantage", "value"), casa_head, True),
    "type1": Head(("advantage", "value"), type1_head, True),
    "type2": Head(("advantage", "value"), type2_head, True),
    "type3": Head(("advantage", "value"), type3_head, True),
    "type4": Head(("advantage", "value"), dueling_head, True),
    "type5": Head(("advantage", "value", "q"), separate_q_head, True),
    "dueling": Head(("advantage", "value"), dueling_head, True),
}
