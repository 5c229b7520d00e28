"""What every head returns, `HeadOutput`, and the densities that heads are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from casa import piecewise
from casa.actions import (
    Knots,
    Part,
    Sizes,
    alike,
    argmax,
    blocks,
    is_continuous,
    joined,
    near_best,
    noise,
    pick,
    reduce_blocks,
    sample_from,
    uniform,
    without_chance,
)
from casa.targets.types import wide

Tau = float | Tensor
"""A temperature; a tensor of one number if it is annealed."""


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

    def times(self, first: int | None, end: int | None) -> HeadOutput:
        """The outputs at times `first` to `end` - 1, the leading axis."""
        return self.map(lambda x: self._times(x, slice(first, end)))

    def _times(self, x: Tensor, times: slice) -> Tensor:
        parts = len(self.sizes) if self.sizes and alike(self.sizes) else 1
        if parts == 1 or x.ndim == self.v.ndim or x.shape[-1] % parts:
            return x[times]
        # x was made as [..., D, n]. Slicing it in this shape spares a compiler index arithmetic in the backward pass.
        return x.unflatten(-1, (parts, -1))[times].flatten(-2)

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
        if self.pi is None or self.sizes is None:
            return entropy(self.log_pi, self.pi)
        return reduce_blocks(lambda _, log_pi, pi: entropy(log_pi, pi), self.sizes, self.log_pi, self.pi).sum(-1)

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
        return self.sample_from(self.noise(generator))

    def noise(self, generator: torch.Generator) -> list[Tensor]:
        """The random numbers of one sample. They depend on no value here, only on shapes."""
        return noise(self.log_pi, self.sizes, generator)

    def sample_from(self, drawn: Sequence[Tensor]) -> Tensor:
        """a ~ π(·|s) as a function of the numbers that `noise` drew."""
        return sample_from(self.log_pi, self.sizes, drawn)

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

    def drawn_q(self) -> Tensor | None:
        """Q as `drawn` has π: each part's share of it, at every option and knot; None if there is no Q."""
        return self.q

    def boltzmann_entropy(self, tau: Tau) -> Tensor:
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


def policy(x: Tensor, tau: Tau = 1.0, sizes: Sizes = None) -> tuple[Tensor, Tensor | None]:
    """(log π [..., A], `HeadOutput.pi`) of π ∝ exp(x/τ): `log_softmax` of each choice, density of continuous parts."""
    found = [density(part, y, tau, sizes) for part, y in blocks(sizes, x)]
    log_pi, pi = zip(*found, strict=True)
    return joined(log_pi, sizes), joined_weights(pi, sizes)


def density(part: Part, x: Tensor, tau: Tau, sizes: Sizes) -> tuple[Tensor, Tensor | None]:
    """`policy` of one of the `blocks` of x."""
    if isinstance(part, Knots):
        return piecewise.normalize(_tempered(x, tau))
    log_pi = log_softmax(x, tau)
    return log_pi, log_pi.exp() if is_continuous(sizes) else None


def joined_weights(found: Sequence[Tensor | None], sizes: Sizes) -> Tensor | None:
    """`HeadOutput.pi` of all blocks in one axis."""
    weights = [x for x in found if x is not None]
    return joined(weights, sizes) if weights else None


def log_softmax(logits: Tensor, tau: Tau = 1.0) -> Tensor:
    """log π = x/τ - log Σ exp(x/τ), in fp32 or better, exact for large x and small τ."""
    return torch.log_softmax(_tempered(logits, tau), -1)


def _tempered(x: Tensor, tau: Tau) -> Tensor:
    """(x - max x)/τ: the maximum is subtracted before the division, so that x = 1e4 and τ = 1e-3 lose no digits."""
    if not isinstance(tau, Tensor) and not tau > 0:  # reading a tensor would wait for the device
        raise ValueError(f"tau must be positive, got {tau}")
    x = wide(x)
    return (x - x.detach().amax(-1, keepdim=True)) / tau
