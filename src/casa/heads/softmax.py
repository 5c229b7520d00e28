"""Heads with π = softmax(A/τ) or softmax(logit), and its densities at knots for continuous actions."""

from __future__ import annotations

from torch import Tensor

from casa.actions import Sizes, blocks, joined
from casa.heads.output import HeadOutput, Tau, density, joined_weights, policy
from casa.targets.types import wide


def casa_head(advantage: Tensor, value: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A - sg(π)·A + sg(V) (eq. 6): the gradient of Q is τ times that of log π."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=True, centre=True)


def type1_head(advantage: Tensor, value: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A - π·A + sg(V): CASA without the stop-gradient on π."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=False, stop_v=True, centre=True)


def type2_head(advantage: Tensor, value: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A - sg(π)·A + V: CASA without the stop-gradient on V."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=False, centre=True)


def type3_head(advantage: Tensor, value: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A + sg(V): dueling, with the stop-gradient on V."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=True, centre=False)


def dueling_head(advantage: Tensor, value: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A + V: dueling; type 4 and, with π as a surrogate, R2D2."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=False, centre=False)


def _advantage_head(
    advantage: Tensor, value: Tensor, tau: Tau, sizes: Sizes, *, stop_pi: bool, stop_v: bool, centre: bool
) -> HeadOutput:
    advantage, value = wide(advantage), wide(value)
    v = value.detach() if stop_v else value
    # Each part of an action gets an equal share of V, so that the parts sum to Q.
    share = v if sizes is None else v / len(sizes)
    columns = []
    for part, a in blocks(sizes, advantage):  # once: a compiler adds the gradients of log π and Q in this shape
        log_pi, pi = density(part, a, tau, sizes)
        q = a
        if centre:
            mean_of = log_pi.exp() if pi is None else pi
            q = a - _mean_under(mean_of.detach() if stop_pi else mean_of, a)
        columns.append((log_pi, q, pi))
    log_pis, qs, pis = zip(*columns, strict=True)
    q = joined(qs, sizes) + share.unsqueeze(-1)
    return HeadOutput(value, q, joined(log_pis, sizes), sizes, joined_weights(pis, sizes))


def separate_q_head(advantage: Tensor, value: Tensor, q: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = Q_θ (type 5): Q is a separate network output."""
    log_pi, pi = policy(advantage, tau, sizes)
    return HeadOutput(wide(value), wide(q), log_pi, sizes, pi)


def actor_critic_head(logits: Tensor, value: Tensor, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(logit), V = V_θ, no Q: PPO and IMPALA."""
    log_pi, pi = policy(logits, sizes=sizes)
    return HeadOutput(wide(value), None, log_pi, sizes, pi)


def q_critic_head(logits: Tensor, q: Tensor, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(logit), V = sg(π)·Q (PPO ver. 1 and 2): the gradient of V flows into Q alone."""
    log_pi, pi = policy(logits, sizes=sizes)
    q, mean_of = wide(q), log_pi.detach().exp() if pi is None else pi.detach()
    v = _mean_under(mean_of, q).squeeze(-1) if sizes is None else (mean_of * q).sum(-1)
    return HeadOutput(v, q, log_pi, sizes, pi)


def _mean_under(probabilities: Tensor, x: Tensor) -> Tensor:
    """E_π[x] = Σ_a π(a) x(a), keeping the last axis; the maximum is subtracted first, so an offset costs no digits."""
    offset = x.detach().amax(-1, keepdim=True)
    return (probabilities * (x - offset)).sum(-1, keepdim=True) + offset
