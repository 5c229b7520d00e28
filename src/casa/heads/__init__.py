"""From network outputs to (V, Q, log π): every function approximation of the paper, as pure functions.

`sg` is stop-gradient (`Tensor.detach`). All functions take any leading shape: `advantage`, `logits` and `q` are
`[..., A]`, `value` is `[...]`. Each returns `HeadOutput(v [...], q [..., A] or None, log_pi [..., A])`.

With `sizes` an action has several parts (`casa.actions`), and A is the sum of their numbers of options. The policy is
then a product over the parts and Q a sum, so that ∇Q = τ∇log π stays exact for the CASA head. For a continuous part
the last axis holds values at knots: of A and Q, and of the logarithm of the density π (`casa.piecewise`). The Gaussian
heads have (mean, log std) there instead. The categorical head has logits of atoms, and Q is their mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from casa import tables
from casa.actions import Sizes
from casa.heads.categorical import CategoricalOutput, categorical_head
from casa.heads.gaussian import casa_gaussian_head, gaussian_head
from casa.heads.output import HeadOutput, Tau, entropy, log_softmax, policy
from casa.heads.softmax import (
    actor_critic_head,
    casa_head,
    dueling_head,
    q_critic_head,
    separate_q_head,
    type1_head,
    type2_head,
    type3_head,
)

__all__ = [
    "HEADS",
    "CategoricalOutput",
    "Head",
    "HeadOutput",
    "actor_critic_head",
    "casa_gaussian_head",
    "casa_head",
    "categorical_head",
    "dueling_head",
    "entropy",
    "gaussian_head",
    "log_softmax",
    "policy",
    "q_critic_head",
    "separate_q_head",
    "type1_head",
    "type2_head",
    "type3_head",
]


@dataclass(frozen=True)
class Head:
    """A function approximation: the outputs of the network, and the function from them to (V, Q, log π).

    `outputs` names the network outputs in the order of `function`'s arguments: "value" is [...], others [..., A], and
    "mean" and "log_std" [..., D] for D continuous parts; log_std is the same in every state. "value_atoms" [..., N] and
    "advantage_atoms" [..., A, N] are the logits of a distribution on N atoms; such a function also takes `support`.
    `tempered` heads take τ as the next argument, a float, or a tensor of one number if `agent.tau_decay` < 1, and their
    J carries the factor τ (eq. 8). A function that also takes `sizes` supports actions of several parts. `casa recipes`
    shows `formula`.
    """

    outputs: tuple[str, ...]
    function: Callable[..., HeadOutput]
    tempered: bool
    formula: str
    has_q: bool = True

    @property
    def takes_sizes(self) -> bool:
        """Whether the head supports actions of several parts."""
        return "sizes" in inspect.signature(self.function).parameters

    @property
    def takes_support(self) -> bool:
        """Whether Q is the mean of a distribution on atoms."""
        return "support" in inspect.signature(self.function).parameters

    def __call__(
        self,
        outputs: dict[str, Tensor],
        tau: Tau = 1.0,
        sizes: Sizes = None,
        support: tuple[float, float] | None = None,
    ) -> HeadOutput:
        """(V, Q, log π) from named network outputs; `support`: the lowest and the highest atom, if there are atoms."""
        tensors = [outputs[name] for name in self.outputs]
        given: dict[str, Any] = {"sizes": sizes, "support": support}
        more = {name: value for name, value in given.items() if value is not None}
        return self.function(*tensors, tau, **more) if self.tempered else self.function(*tensors, **more)


HEADS: tables.Table[Head] = tables.HEADS
"""Name -> head: all of the paper's, and those of plug-ins."""

_LOGITS, _ADVANTAGE, _GAUSSIAN = ("logits", "value"), ("advantage", "value"), ("mean", "log_std", "value")
for _name, _head in {
    "actor-critic": Head(_LOGITS, actor_critic_head, False, "(V,logit); π = softmax(logit)", has_q=False),
    "gaussian": Head(_GAUSSIAN, gaussian_head, False, "(V,mean,std); π = N(mean, std²)", has_q=False),
    "casa-gaussian": Head(
        _GAUSSIAN, casa_gaussian_head, True, "(V,mean,std); π = N(mean, std²); Q = τ(log π + sg(H)) + sg(V)"
    ),
    "q-critic": Head(("logits", "q"), q_critic_head, False, "(Q,logit); π = softmax(logit); V = sg(π)·Q"),
    "casa": Head(_ADVANTAGE, casa_head, True, "(V,A); π = softmax(A/τ); Q = A - sg(π)·A + sg(V)"),
    "type1": Head(_ADVANTAGE, type1_head, True, "(V,A); π = softmax(A/τ); Q = A - π·A + sg(V)"),
    "type2": Head(_ADVANTAGE, type2_head, True, "(V,A); π = softmax(A/τ); Q = A - sg(π)·A + V"),
    "type3": Head(_ADVANTAGE, type3_head, True, "(V,A); π = softmax(A/τ); Q = A + sg(V)"),
    "type4": Head(_ADVANTAGE, dueling_head, True, "(V,A); π = softmax(A/τ); Q = A + V"),
    "type5": Head(("advantage", "value", "q"), separate_q_head, True, "(V,A,Q); π = softmax(A/τ)"),
    "dueling": Head(_ADVANTAGE, dueling_head, True, "(V,A); π = softmax(A/τ); Q = A + V"),
    "categorical": Head(
        ("advantage_atoms", "value_atoms"),
        categorical_head,
        True,
        "(V,A) of atoms; Q = E[Z]; π = softmax(Q/τ)",
    ),
}.items():
    HEADS.add(_name, _head, __name__)
