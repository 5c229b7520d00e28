"""From network outputs to (V, Q, log π): every function approximation of the paper, as pure functions.

`sg` is stop-gradient (`Tensor.detach`). All functions take any leading shape: `advantage`, `logits` and `q` are
`[..., A]`, `value` is `[...]`. Each returns `HeadOutput(v [...], q [..., A] or None, log_pi [..., A])`.

With `sizes` an action has several parts (`casa.actions`), and A is the sum of their numbers of options. The policy is
then a product over the parts and Q a sum, so that ∇Q = τ∇log π stays exact for the CASA head.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from casa import tables
from casa.actions import Sizes, argmax, blockwise, pick, reduce_blocks, uniform
from casa.targets.types import wide


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """(V(s) [...], Q(s, ·) [..., A] or None if the head has no Q, log π(·|s) [..., A]); unpacks to these three.

    Everything that CASA needs from a policy is a method here, so that no other code depends on the layout of actions.
    With `sizes`, log_pi holds the log-probabilities of each part, and q each part's share of Q: Q(s, a) = Σ_d q_d(a_d).
    """

    v: Tensor
    q: Tensor | None
    log_pi: Tensor
    sizes: Sizes = None

    def __iter__(self) -> Iterator[Tensor]:
        """V, Q, log π. Q is None for a head without Q, despite the declared type."""
        return iter((self.v, self.q, self.log_pi))  # type: ignore[arg-type]

    def map(self, function: Callable[[Tensor], Tensor]) -> HeadOutput:
        """(f(V), f(Q), f(log π)); a missing Q stays None."""
        q = None if self.q is None else function(self.q)
        return replace(self, v=function(self.v), q=q, log_pi=function(self.log_pi))

    def scaled(self, scale: Tensor) -> HeadOutput:
        """The same with V and Q in another unit."""
        return replace(self, v=self.v * scale, q=None if self.q is None else self.q * scale)

    def detach(self) -> HeadOutput:
        """The same without gradients."""
        return self.map(lambda x: x.detach())

    def tensors(self) -> list[Tensor]:
        """V, Q if there is one, and log π, in the order that `with_tensors` expects."""
        return [x for x in (self.v, self.q, self.log_pi) if x is not None]

    def with_tensors(self, tensors: list[Tensor]) -> HeadOutput:
        """A copy with other tensors, in the order of `tensors`."""
        v, *q, log_pi = tensors
        return replace(self, v=v, q=q[0] if q else None, log_pi=log_pi)

    def log_prob(self, actions: Tensor) -> Tensor:
        """log π(a|s) [...] = Σ_d log π_d(a_d|s)."""
        return pick(self.log_pi, actions, self.sizes)

    def q_of(self, actions: Tensor) -> Tensor:
        """Q(s, a) [...]."""
        return pick(self._q, actions, self.sizes)

    def mean_q(self) -> Tensor:
        """E_π[Q] = Σ_a π(a) Q(a) [...]."""
        return (self.log_pi.exp() * self._q).sum(-1)

    def entropy(self) -> Tensor:
        """H[π] = -Σ_a π(a) log π(a) [...], summed over the parts of an action; 0 log 0 = 0."""
        return entropy(self.log_pi)

    def sample(self, generator: torch.Generator) -> Tensor:
        """a ~ π(·|s): argmax_a π(a)/e_a with e_a ~ Exp(1) is a draw from π."""
        noise = torch.empty_like(self.log_pi).exponential_(generator=generator)
        return argmax(self.log_pi - noise.log(), self.sizes)

    def mode(self) -> Tensor:
        """argmax_a π(a|s)."""
        return argmax(self.log_pi, self.sizes)

    def argmax_q(self) -> Tensor:
        """argmax_a Q(s, a)."""
        return argmax(self._q, self.sizes)

    def uniform(self, generator: torch.Generator) -> tuple[Tensor, float]:
        """(a uniformly random action in every state, the number of different actions)."""
        return uniform(self.v.shape, self.log_pi.shape[-1], self.sizes, generator)

    def spread(self) -> Tensor:
        """Standard deviation over uniformly random actions of Q, or of log π if there is no Q."""
        x = (self.log_pi if self.q is None else self.q).detach()
        if self.sizes is None:
            return x.std(-1, correction=0)
        return reduce_blocks(lambda block: block.var(-1, correction=0), self.sizes, x).sum(-1).sqrt()

    @property
    def _q(self) -> Tensor:
        if self.q is None:
            raise ValueError("this head has no Q")
        return self.q


def entropy(log_pi: Tensor) -> Tensor:
    """H[π] = -Σₐ π(a) log π(a) of `log_pi` [..., A]; returns [...]; 0 log 0 = 0 in value and gradient."""
    log_pi = wide(log_pi)
    return -(log_pi.exp() * log_pi.clamp(min=torch.finfo(log_pi.dtype).min)).sum(-1)


def log_softmax(logits: Tensor, tau: float = 1.0) -> Tensor:
    """log π = x/τ - log Σ exp(x/τ), in fp32 or better, exact for large x and small τ.

    The maximum is subtracted before the division, so that x = 1e4 and τ = 1e-3 lose no digits.
    """
    if not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    x = wide(logits)
    return torch.log_softmax((x - x.detach().amax(-1, keepdim=True)) / tau, -1)


def _mean_under(probabilities: Tensor, x: Tensor) -> Tensor:
    """E_π[x] = Σ_a π(a) x(a), keeping the last axis; the maximum is subtracted first, so an offset costs no digits."""
    offset = x.detach().amax(-1, keepdim=True)
    return (probabilities * (x - offset)).sum(-1, keepdim=True) + offset


def casa_head(advantage: Tensor, value: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A - sg(π)·A + sg(V) (eq. 6): the gradient of Q is τ times that of log π."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=True, centre=True)


def type1_head(advantage: Tensor, value: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A - π·A + sg(V): CASA without the stop-gradient on π."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=False, stop_v=True, centre=True)


def type2_head(advantage: Tensor, value: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A - sg(π)·A + V: CASA without the stop-gradient on V."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=False, centre=True)


def type3_head(advantage: Tensor, value: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A + sg(V): dueling, with the stop-gradient on V."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=True, centre=False)


def dueling_head(advantage: Tensor, value: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = A + V: dueling; type 4 and, with π as a surrogate, R2D2."""
    return _advantage_head(advantage, value, tau, sizes, stop_pi=True, stop_v=False, centre=False)


def _advantage_head(
    advantage: Tensor, value: Tensor, tau: float, sizes: Sizes, *, stop_pi: bool, stop_v: bool, centre: bool
) -> HeadOutput:
    advantage, value = wide(advantage), wide(value)
    log_pi = blockwise(lambda x: log_softmax(x, tau), sizes, advantage)
    q = advantage
    if centre:
        pi = log_pi.exp()
        q = blockwise(lambda p, a: a - _mean_under(p, a), sizes, pi.detach() if stop_pi else pi, advantage)
    v = value.detach() if stop_v else value
    # Each part of an action gets an equal share of V, so that the parts sum to Q.
    q = q + (v if sizes is None else v / len(sizes)).unsqueeze(-1)
    return HeadOutput(value, q, log_pi, sizes)


def separate_q_head(advantage: Tensor, value: Tensor, q: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(A/τ), Q = Q_θ (type 5): Q is a separate network output."""
    return HeadOutput(wide(value), wide(q), blockwise(lambda x: log_softmax(x, tau), sizes, advantage), sizes)


def actor_critic_head(logits: Tensor, value: Tensor, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(logit), V = V_θ, no Q: PPO and IMPALA."""
    return HeadOutput(wide(value), None, blockwise(log_softmax, sizes, logits), sizes)


def q_critic_head(logits: Tensor, q: Tensor, sizes: Sizes = None) -> HeadOutput:
    """π = softmax(logit), V = sg(π)·Q (PPO ver. 1 and 2): the gradient of V flows into Q alone."""
    log_pi, q = blockwise(log_softmax, sizes, logits), wide(q)
    pi = log_pi.detach().exp()
    if sizes is None:
        v = _mean_under(pi, q).squeeze(-1)
    else:
        v = (pi * q).sum(-1)
    return HeadOutput(v, q, log_pi, sizes)


@dataclass(frozen=True)
class Head:
    """A function approximation: the outputs of the network, and the function from them to (V, Q, log π).

    `outputs` names the network outputs in the order of `function`'s arguments: "value" is [...], others [..., A].
    `tempered` heads take τ as the next argument, and their J carries the factor τ (eq. 8). A function that also takes
    `sizes` supports actions of several parts. `casa recipes` shows `formula`.
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

    def __call__(self, outputs: dict[str, Tensor], tau: float = 1.0, sizes: Sizes = None) -> HeadOutput:
        """(V, Q, log π) from named network outputs."""
        tensors = [outputs[name] for name in self.outputs]
        more = {} if sizes is None else {"sizes": sizes}
        return self.function(*tensors, tau, **more) if self.tempered else self.function(*tensors, **more)


HEADS: tables.Table[Head] = tables.HEADS
"""Name -> head: all of the paper's, and those of plug-ins."""

_LOGITS, _ADVANTAGE = ("logits", "value"), ("advantage", "value")
for _name, _head in {
    "actor-critic": Head(_LOGITS, actor_critic_head, False, "(V,logit); π = softmax(logit)", has_q=False),
    "q-critic": Head(("logits", "q"), q_critic_head, False, "(Q,logit); π = softmax(logit); V = sg(π)·Q"),
    "casa": Head(_ADVANTAGE, casa_head, True, "(V,A); π = softmax(A/τ); Q = A - sg(π)·A + sg(V)"),
    "type1": Head(_ADVANTAGE, type1_head, True, "(V,A); π = softmax(A/τ); Q = A - π·A + sg(V)"),
    "type2": Head(_ADVANTAGE, type2_head, True, "(V,A); π = softmax(A/τ); Q = A - sg(π)·A + V"),
    "type3": Head(_ADVANTAGE, type3_head, True, "(V,A); π = softmax(A/τ); Q = A + sg(V)"),
    "type4": Head(_ADVANTAGE, dueling_head, True, "(V,A); π = softmax(A/τ); Q = A + V"),
    "type5": Head(("advantage", "value", "q"), separate_q_head, True, "(V,A,Q); π = softmax(A/τ)"),
    "dueling": Head(_ADVANTAGE, dueling_head, True, "(V,A); π = softmax(A/τ); Q = A + V"),
}.items():
    HEADS.add(_name, _head, __name__)
