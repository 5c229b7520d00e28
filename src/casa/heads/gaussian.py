"""Heads with π = N(mean, std²), for actions that are one Box."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from casa.actions import Knots, Sizes
from casa.heads.output import HeadOutput, Tau
from casa.targets.types import wide


class GaussianOutput(HeadOutput):
    """π = N(mean, std²) of each continuous part; `log_pi` holds (mean, log std) [..., 2 D], and there is no Q.

    An action outside [-1, 1] is limited on its way to the environment, and keeps its own density.
    """

    def log_prob(self, actions: Tensor) -> Tensor:
        """log π(a|s) = -½ Σ_d (((a_d - mean_d) / std_d)² + log 2π std_d²) [...]."""
        return _log_density(actions, *self.log_pi.chunk(2, -1)).sum(-1)

    def entropy(self) -> Tensor:
        """H[π] = Σ_d ½ log 2πe std_d² [...]."""
        return (self.log_pi.chunk(2, -1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def divergence(self, log_mu: Tensor) -> Tensor:
        """KL(π ‖ μ) = ½ Σ_d ((std_d² + (mean_d - m_d)²) / s_d² - 1 - log std_d² / s_d²) with μ = N(m, s²)."""
        mean, log_std = self.log_pi.chunk(2, -1)
        m, log_s = log_mu.chunk(2, -1)
        ratio = 2 * (log_std - log_s)
        return 0.5 * (ratio.exp() + ((mean - m) / log_s.exp()).square() - 1 - ratio).sum(-1)

    def noise(self, generator: torch.Generator) -> list[Tensor]:
        """ε ~ N(0, 1) for every part."""
        mean, _ = self.log_pi.chunk(2, -1)
        return [torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)]

    def sample_from(self, drawn: Sequence[Tensor]) -> Tensor:
        """mean + std ε."""
        mean, log_std = self.log_pi.chunk(2, -1)
        return mean + log_std.exp() * drawn[0]

    def mode(self) -> Tensor:
        """E_π[min(max(a, -1), 1)]: the mean of what reaches the environment, not the limited mean.

        A policy that often goes to a bound has its mean far outside, where the limited mean is always that bound.
        """
        mean, log_std = self.log_pi.chunk(2, -1)
        std = log_std.exp()
        low, high = (-1 - mean) / std, (1 - mean) / std
        below, above = torch.special.ndtr(low), torch.special.ndtr(-high)
        bells = (torch.exp(-0.5 * low.square()) - torch.exp(-0.5 * high.square())) / math.sqrt(2 * math.pi)
        return above - below + mean * (1 - above - below) + std * bells

    def drawn(self) -> Tensor:
        """The density at as many knots as other heads have, [..., D · knots]."""
        return self._at_knots().exp().flatten(-2)

    def _at_knots(self) -> Tensor:
        """log π_d at the knots [..., D, knots]."""
        assert self.sizes is not None and isinstance(self.sizes[0], Knots)
        mean, log_std = (x.unsqueeze(-1) for x in self.log_pi.chunk(2, -1))
        u = torch.linspace(-1, 1, self.sizes[0].count, dtype=mean.dtype, device=mean.device)
        return _log_density(u, mean, log_std)

    def spread(self) -> Tensor:
        """Standard deviation of log π over uniformly random actions."""
        mean, log_std = self.log_pi.detach().chunk(2, -1)
        return ((1 / 45 + mean.square() / 3) * (-4 * log_std).exp()).sum(-1).sqrt()


def _log_density(u: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(u; mean, std²) of every part by itself."""
    return -0.5 * ((u - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)


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
        return self.log_pi.chunk(2, -1)[0]

    def near_best_q(self, epsilons: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """ε-greedy in every part by itself: (actions, log μ) with μ_d = ε U(-1, 1) + (1 - ε) π_d."""
        near, epsilon = self.sample(generator), epsilons.unsqueeze(-1)
        drawn, explore = torch.rand(2, *near.shape, dtype=near.dtype, device=near.device, generator=generator)
        actions = torch.where(explore < epsilon, 2 * drawn - 1, near)
        density = _log_density(actions, *self.log_pi.chunk(2, -1)).exp()
        mu = epsilon / 2 * (actions.abs() <= 1) + (1 - epsilon) * density
        return actions, mu.log().sum(-1)

    def drawn_q(self) -> Tensor:
        """V/D + τ (log π_d + H_d) at the knots of every part, [..., D · knots]."""
        value, tau = (x.unsqueeze(-1).unsqueeze(-1) for x in self._q.unbind(-1))
        log_pi, log_std = self._at_knots(), self.log_pi.chunk(2, -1)[1].unsqueeze(-1)
        entropy = log_std + 0.5 * math.log(2 * math.pi * math.e)
        return (value / log_pi.shape[-2] + tau * (log_pi + entropy)).flatten(-2)

    def boltzmann_entropy(self, tau: Tau) -> Tensor:
        """Entropy of softmax(Q / τ') [...], which is N(mean, std² τ'/τ)."""
        parts = self.log_pi.shape[-1] // 2
        return (self.entropy() + 0.5 * parts * (tau / self._q[..., 1]).log()).detach()

    def spread(self) -> Tensor:
        """Standard deviation of Q over uniformly random actions."""
        return self._q[..., 1].detach() * super().spread()


def casa_gaussian_head(mean: Tensor, log_std: Tensor, value: Tensor, tau: Tau, sizes: Sizes = None) -> HeadOutput:
    """A = -τ Σ_d (a_d - mean_d)² / 2 std_d², so π ∝ exp(A/τ) is Gaussian; Q = A - sg(E_π)[A] + sg(V).

    E_π[∇log π] = 0, so that ∇Q = τ ∇log π, as for `casa_head`. This holds for any density: Q = V + τ (log π + H).
    """
    if not isinstance(tau, Tensor) and not tau > 0:
        raise ValueError(f"tau must be positive, got {tau}")
    value = wide(value)
    v = value.detach()
    q = torch.stack((v, tau * torch.ones_like(v)), -1)
    return CasaGaussianOutput(value, q, torch.cat((wide(mean), wide(log_std)), -1), sizes)
