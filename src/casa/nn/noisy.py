"""NoisyNet's linear layer with factorised Gaussian noise (Fortunato et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NoisyLinear(nn.Module):
    """y = (W + S ∘ (f(ε') f(ε)ᵀ)) x + b + s ∘ f(ε') with ε, ε' ~ N(0, 1) and f(x) = sign(x) √|x| (eq. 9 to 11).

    Computed as W x + b + f(ε') ∘ (S (f(ε) ∘ x) + s): two `nn.Linear`, whose gradients `casa.diagnostics` knows. So
    every row of x may have noise of its own. W and b start as in `nn.Linear`, S and s at σ₀/√inputs.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        self.mean, self.deviation = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        for x in self.deviation.parameters():
            nn.init.constant_(x, sigma * inputs**-0.5)
        self.inputs, self.noise_size = inputs, inputs + outputs

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[..., outputs] of x [..., inputs]; `noise` (f(ε), f(ε')) [1 or rows, inputs + outputs], None: W x + b."""
        mean: Tensor = self.mean(x)
        if noise is None:
            return mean
        noise = noise.to(x.dtype)
        return mean + noise[..., self.inputs :] * self.deviation(noise[..., : self.inputs] * x)


def factor_noise(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """f(ε) [rows, size] on the generator's device: independent, with mean 0 and E[f(ε)²] = √(2/π)."""
    drawn = torch.randn(rows, size, generator=generator, device=generator.device)
    return drawn.sign() * drawn.abs().sqrt()
