"""C51's head: Q is the mean of a distribution on fixed atoms (Bellemare et al. 2017), dueling as in Rainbow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from casa.heads.output import HeadOutput, Tau, log_softmax
from casa.targets.categorical import Support, atoms
from casa.targets.types import wide

SUPPORT: Support = (-10.0, 10.0)
"""The published lowest and highest atom."""


@dataclass(frozen=True, eq=False)
class CategoricalOutput(HeadOutput):
    """`HeadOutput` with the distribution whose mean is Q: log p of each action's atoms."""

    log_p: Tensor = field(kw_only=True)
    """log p(s, a) [..., A, N]; the atoms are in the network's unit of returns."""

    def log_p_of(self, actions: Tensor) -> Tensor:
        """log p(s, a) [..., N] of given actions [...]."""
        index = actions.long()[..., None, None].expand(*actions.shape, 1, self.log_p.shape[-1])
        return self.log_p.gather(-2, index).squeeze(-2)

    def map(self, function: Callable[[Tensor], Tensor]) -> CategoricalOutput:
        """The same with f applied to every tensor."""
        return self.with_tensors([function(x) for x in self.tensors()])

    def tensors(self) -> list[Tensor]:
        """V, Q, log π, log p."""
        return [self.v, self._q, self.log_pi, self.log_p]

    def with_tensors(self, tensors: list[Tensor]) -> CategoricalOutput:
        """A copy with other tensors, in the order of `tensors`."""
        v, q, log_pi, log_p = tensors
        return replace(self, v=v, q=q, log_pi=log_pi, log_p=log_p)


def categorical_head(
    advantage_atoms: Tensor, value_atoms: Tensor, tau: Tau, support: Support = SUPPORT
) -> CategoricalOutput:
    """p(s, a) = softmaxᵢ(Vᵢ + Aᵢ(a) - mean_a Aᵢ), Q = Σᵢ zᵢ pᵢ, π = softmax(Q/τ), V = sg(π)·Q.

    `advantage_atoms` is [..., A, N] and `value_atoms` [..., N], both logits. π is a surrogate, as for R2D2.
    """
    advantage, value = wide(advantage_atoms), wide(value_atoms)
    logits = value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)
    log_p = torch.log_softmax(logits, -1)
    q = (log_p.exp() * atoms(support, log_p.shape[-1], log_p)).sum(-1)
    log_pi = log_softmax(q, tau)
    return CategoricalOutput((log_pi.detach().exp() * q).sum(-1), q, log_pi, log_p=log_p)
