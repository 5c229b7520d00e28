"""From network outputs to (V, Q, log π): every function approximation of the paper, as pure functions.

`sg` is stop-gradient (`Tensor.detach`). All functions take any leading shape: `advantage`, `logits` and `q` are
`[..., A]`, `value` is `[...]`. Each returns `HeadOutput(v [...], q [..., A] or None, log_pi [..., A])`.

With `sizes` an action has several parts (`casa.actions`), and A is the sum of their numbers of options. The policy is
then a product over the parts and Q a sum, so that ∇Q = τ∇log π stays exact for the CASA head. For a continuous part
the last axis holds values at knots: of A and Q, and of the logarithm of the density π (`casa.piecewise`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from casa import piecewise, tables
from casa.actions import (
    Knots,
    Part,
    Sizes,
    argmax,
    blocks,
    blockwise,
    is_continuous,
    joined,
    near_best,
    pick,
    reduce_blocks,
    sample,
    uniform,
    without_chance,
)
from casa.targets.types import wide


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """(V(s) [...], Q(s, ·) [..., A] or None if the head has no Q, log π(·|s) [..., A]); unpacks to these three.

    Everything that CASA needs from a policy is a method here, so that no other code depends on the layout of actions.
    With `sizes`, log_pi holds the log-probabilities of each part, and q each part's share of Q: Q(s, a) = Σ_d q_d(a_d).
    With continuous parts, `pi` holds what stands for probabilities in E_π[x] = Σ π x: the weights of the knots.
    """

    v: Tensor
    q: Tensor | None
    log_pi: Tensor
    sizes: Sizes = None
    pi: Tensor | None = None

    def __iter__(self) -> Iterator[Tensor]:
        """V, Q, log π. Q is None for a head without Q, despite the declared type."""
        return iter((self.v, self.q, self.log_pi))  # type: ignore[arg-type]

    def map(self, function: Callable[[Tensor], Tensor]) -> HeadOutput:
        """(f(V), f(Q), f(log π)); a missing Q stays None."""
        q, pi = (None if x is None else function(x) for x in (self.q, self.pi))
        return type(self)(function(self.v), q, function(self.log_pi), self.sizes, pi)

    def scaled(self, scale: Tensor) -> HeadOutput:
        """The same with V and Q in another unit."""
        return replace(self, v=self.v * scale, q=None if self.q is None else self.q * scale)

    def detach(self) -> HeadOutput:
        """The same without gradients."""
        return self.map(lambda x: x.detach())

    def tensors(self) -> list[Tensor]:
        """V, Q if there is one, log π, and π if it is given, in the order that `with_tensors` expects."""
        return [x for x in (self.v, self.q, self.log_pi, self.pi) if x is not None]

    def with_tensors(self, tensors: list[Tensor]) -> HeadOutput:
        """A copy with other tensors, in the order of `tensors`."""
        v, *rest = tensors
        q = None if self.q is None else rest.pop(0)
        return replace(self, v=v, q=q, log_pi=rest[0], pi=rest[1] if len(rest) > 1 else None)

    def log_prob(self, actions: Tensor) -> Tensor:
        """log π(a|s) [...] = Σ_d log π_d(a_d|s)."""
        return pick(self.log_pi, actions, self.sizes)

    def q_of(self, actions: Tensor) -> Tensor:
        """Q(s, a) [...]."""
        return pick(self._q, actions, self.sizes)

    def mean_q(self) -> Tensor:
        """E_π[Q] = Σ_a π(a) Q(a) [...]."""
        return self.mean_q_of(self)

    def mean_q_of(self, other: HeadOutput) -> Tensor:
        """E_π[Q'] = Σ_a π(a) Q'(a) [...], with the Q' of another network."""
        return ((self.log_pi.exp() if self.pi is None else self.pi) * other._q).sum(-1)

    def entropy(self) -> Tensor:
        """H[π] = -Σ_a π(a) log π(a) [...], summed over the parts of an action; 0 log 0 = 0."""
        return entropy(self.log_pi, self.pi)

    def divergence(self, log_mu: Tensor) -> Tensor:
        """KL(π ‖ μ) = Σ_a π(a) (log π(a) - log μ(a)) [...], summed over the parts of an action; 0 log 0 = 0.

        `log_mu` is the `log_pi` of another output of the same head. Exact for continuous parts too: both logarithms are
        piecewise linear on the same knots.
        """
        lowest = torch.finfo(self.log_pi.dtype).min
        log_pi, log_mu = (x.to(self.log_pi.dtype).clamp(min=lowest) for x in (self.log_pi, log_mu))
        return ((self.log_pi.exp() if self.pi is None else self.pi) * (log_pi - log_mu)).sum(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """a ~ π(·|s)."""
        return sample(self.log_pi, self.sizes, generator)

    def mode(self) -> Tensor:
        """The action without chance: argmax_a π(a|s), and E_π[a] for a continuous part whose density is smooth."""
        return without_chance(self.log_pi, self.pi, self.sizes)

    def argmax_q(self) -> Tensor:
        """argmax_a Q(s, a)."""
        return argmax(self._q, self.sizes)

    def uniform(self, generator: torch.Generator) -> tuple[Tensor, float]:
        """(a uniformly random action in every state, the number of different actions)."""
        return uniform(self.v.shape, self.log_pi.shape[-1], self.sizes, generator)

    def near_best_q(self, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """ε-greedy on Q for actions with continuous parts: (actions, log μ), see `casa.actions.near_best`."""
        assert self.sizes is not None
        return near_best(self._q, self.sizes, epsilons, generator)

    def drawn(self) -> Tensor:
        """What to draw: π of every option, and the density at every knot of a continuous part, [..., width]."""
        return self.log_pi.exp()

    def boltzmann_entropy(self, tau: float) -> Tensor:
        """Entropy of softmax(Q / τ) [...], detached."""
        return entropy(*policy(self._q.detach(), tau, self.sizes))

    def spread(self) -> Tensor:
        """Standard deviation over uniformly random actions of Q, or of log π if there is no Q."""
        x = (self.log_pi if self.q is None else self.q).detach()
        if self.sizes is None:
            return x.std(-1, correction=0)
        return reduce_blocks(_variance, self.sizes, x).sum(-1).sqrt()

    @property
    def _q(self) -> Tensor:
        if self.q is None:
            raise ValueError("this head has no Q")
        return self.q


def _variance(part: Part, block: Tensor) -> Tensor:
    return piecewise.variance(block) if isinstance(part, Knots) else block.var(-1, correction=0)


def entropy(log_pi: Tensor, pi: Tensor | None = None) -> Tensor:
    """H[π] = -Σₐ π(a) log π(a) of `log_pi` [..., A]; returns [...]; 0 log 0 = 0 in value and gradient.

    `pi` [..., A] are the weights of expectations where they are not exp(log_pi): with continuous actions.
    """
    log_pi = wide(log_pi)
    return -((log_pi.exp() if pi is None else pi) * log_pi.clamp(min=torch.finfo(log_pi.dtype).min)).sum(-1)


def policy(x: Tensor, tau: float = 1.0, sizes: Sizes = None) -> tuple[Tensor, Tensor | None]:
    """(log π [..., A], `HeadOutput.pi`) of π ∝ exp(x/τ): `log_softmax` of each choice, density of continuous parts."""
    if not is_continuous(sizes):
        return blockwise(lambda _, y: log_softmax(y, tau), sizes, x), None
    found = [_density(part, y, tau) for part, y in blocks(sizes, x)]
    log_pi, pi = (joined(part, sizes) for part in zip(*found, strict=True))
    return log_pi, pi


def _density(part: Part, x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    if isinstance(part, Knots):
        return piecewise.normalize(_tempered(x, tau))
    return (log_pi := log_softmax(x, tau)), log_pi.exp()


def log_softmax(logits: Tensor, tau: float = 1.0) -> Tensor:
    """log π = x/τ - log Σ exp(x/τ), in fp32 or better, exact for large x and small τ."""
    return torch.log_softmax(_tempered(logits, tau), -1)


def _tempered(x: Tensor, tau: float) -> Tensor:
    """(x - max x)/τ: the maximum is subtracted before the division, so that x = 1e4 and τ = 1e-3 lose no digits."""
    if not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    x = wide(x)
    return (x - x.detach().amax(-1, keepdim=True)) / tau


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
    log_pi, pi = policy(advantage, tau, sizes)
    q = advantage
    if centre:
        mean_of = log_pi.exp() if pi is None else pi
        q = blockwise(lambda _, p, a: a - _mean_under(p, a), sizes, mean_of.detach() if stop_pi else mean_of, advantage)
    v = value.detach() if stop_v else value
    # Each part of an action gets an equal share of V, so that the parts sum to Q.
    q = q + (v if sizes is None else v / len(sizes)).unsqueeze(-1)
    return HeadOutput(value, q, log_pi, sizes, pi)


def separate_q_head(advantage: Tensor, value: Tensor, q: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
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


class GaussianOutput(HeadOutput):
    """π = N(mean, std²) of each continuous part; `log_pi` holds (mean, log std) [..., 2 D], and there is no Q.

    An action outside [-1, 1] is limited on its way to the environment, and keeps its own density.
    """

    def log_prob(self, actions: Tensor) -> Tensor:
        """log π(a|s) = -½ Σ_d (((a_d - mean_d) / std_d)² + log 2π std_d²) [...]."""
        mean, log_std = self.log_pi.chunk(2, -1)
        return -(0.5 * ((actions - mean) / log_std.exp()).square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """H[π] = Σ_d ½ log 2πe std_d² [...]."""
        return (self.log_pi.chunk(2, -1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def divergence(self, log_mu: Tensor) -> Tensor:
        """KL(π ‖ μ) = ½ Σ_d ((std_d² + (mean_d - m_d)²) / s_d² - 1 - log std_d² / s_d²) with μ = N(m, s²)."""
        mean, log_std = self.log_pi.chunk(2, -1)
        m, log_s = log_mu.chunk(2, -1)
        ratio = 2 * (log_std - log_s)
        return 0.5 * (ratio.exp() + ((mean - m) / log_s.exp()).square() - 1 - ratio).sum(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """mean + std ε with ε ~ N(0, 1)."""
        mean, log_std = self.log_pi.chunk(2, -1)
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
        return mean + log_std.exp() * noise

    def mode(self) -> Tensor:
        """The mean."""
        return self.log_pi.chunk(2, -1)[0]

    def drawn(self) -> Tensor:
        """The density at as many knots as other heads have, [..., D · knots]."""
        assert self.sizes is not None and isinstance(self.sizes[0], Knots)
        mean, log_std = (x.unsqueeze(-1) for x in self.log_pi.chunk(2, -1))
        u = torch.linspace(-1, 1, self.sizes[0].count, dtype=mean.dtype, device=mean.device)
        log_pi = -0.5 * ((u - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        return log_pi.exp().flatten(-2)

    def spread(self) -> Tensor:
        """Standard deviation of log π over uniformly random actions."""
        mean, log_std = self.log_pi.detach().chunk(2, -1)
        return ((1 / 45 + mean.square() / 3) * (-4 * log_std).exp()).sum(-1).sqrt()


def gaussian_head(mean: Tensor, log_std: Tensor, value: Tensor, sizes: Sizes = None) -> HeadOutput:
    """π = N(mean, std²), V = V_θ, no Q: PPO for continuous actions."""
    return GaussianOutput(wide(value), None, torch.cat((wide(mean), wide(log_std)), -1), sizes)


class CasaGaussianOutput(GaussianOutput):
    """Q(s, a) = V(s) + τ (log π(a|s) + H[π(·|s)]) beside π = N(mean, std²); `q` holds (V, τ) [..., 2].

    Here log π + H = Σ_d ½ (1 - ((a_d - mean_d) / std_d)²): Q is a parabola in each part, with its maximum at the mean.
    """

    def q_of(self, actions: Tensor) -> Tensor:
        """Q(s, a) [...], with ∇Q = τ ∇log π: no gradient flows into V and H."""
        value, tau = self._q.unbind(-1)
        return value + tau * (self.log_prob(actions) + self.entropy().detach())

    def mean_q(self) -> Tensor:
        """E_π[Q] = V [...]."""
        return self._q[..., 0]

    def mean_q_of(self, other: HeadOutput) -> Tensor:
        """E_π[Q'] = V' + τ' Σ_d ½ (1 - (std_d² + (mean_d - mean'_d)²) / std'_d²) [...]."""
        mean, log_std = self.log_pi.chunk(2, -1)
        m, log_s = other.log_pi.chunk(2, -1)
        value, tau = other._q.unbind(-1)
        ratio = (2 * (log_std - log_s)).exp() + ((mean - m) / log_s.exp()).square()
        return value + tau * 0.5 * (1 - ratio).sum(-1)

    def argmax_q(self) -> Tensor:
        """The mean."""
        return self.mode()

    def near_best_q(self, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """ε-greedy in every part by itself: (actions, log μ) with μ_d = ε U(-1, 1) + (1 - ε) π_d."""
        near, mean, log_std = self.sample(generator), *self.log_pi.chunk(2, -1)
        drawn, explore = torch.rand(2, *mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
        epsilon = epsilons.unsqueeze(-1)
        actions = torch.where(explore < epsilon, 2 * drawn - 1, near)
        density = torch.exp(-0.5 * ((actions - mean) / log_std.exp()).square() - log_std) / math.sqrt(2 * math.pi)
        mu = epsilon / 2 * (actions.abs() <= 1) + (1 - epsilon) * density
        return actions, mu.log().sum(-1)

    def boltzmann_entropy(self, tau: float) -> Tensor:
        """Entropy of softmax(Q / τ') [...], which is N(mean, std² τ'/τ)."""
        parts = self.log_pi.shape[-1] // 2
        return (self.entropy() + 0.5 * parts * (tau / self._q[..., 1]).log()).detach()

    def spread(self) -> Tensor:
        """Standard deviation of Q over uniformly random actions."""
        return self._q[..., 1].detach() * super().spread()


def casa_gaussian_head(mean: Tensor, log_std: Tensor, value: Tensor, tau: float, sizes: Sizes = None) -> HeadOutput:
    """A = -τ Σ_d (a_d - mean_d)² / 2 std_d², so π ∝ exp(A/τ) is Gaussian; Q = A - sg(E_π)[A] + sg(V).

    E_π[∇log π] = 0, so that ∇Q = τ ∇log π, as for `casa_head`. This holds for any density: Q = V + τ (log π + H).
    """
    if not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    value = wide(value)
    v = value.detach()
    q = torch.stack((v, torch.full_like(v, tau)), -1)
    return CasaGaussianOutput(value, q, torch.cat((wide(mean), wide(log_std)), -1), sizes)


@dataclass(frozen=True)
class Head:
    """A function approximation: the outputs of the network, and the function from them to (V, Q, log π).

    `outputs` names the network outputs in the order of `function`'s arguments: "value" is [...], others [..., A], and
    "mean" and "log_std" [..., D] for D continuous parts; log_std is the same in every state.
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

_LOGITS, _ADVANTAGE, _GAUSSIAN = ("logits", "value"), ("advantage", "value"), ("mean", "log_std", "value")
for _name, _head in {
    "actor-critic": Head(_LOGITS, actor_critic_head, False, "(V,logit); π = softmax(logit)", has_q=False),
    "gaussian": Head(_GAUSSIAN, gaussian_head, False, "(V,mean,std); π = N(mean, std²)", has_q=False),
    "casa-gaussian": Head(_GAUSSIAN, casa_gaussian_head, True, "(V,mean,std); π = N(mean, std²); Q = τ(log π + H) + sg(V)"),
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
