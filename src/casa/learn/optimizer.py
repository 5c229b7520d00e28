"""AdamW with the paper's two linear schedules, warm-up and gradient-norm clipping."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from casa.config.fields import LearnerConfig
from casa.learn.shares import Grads


def rate(step: int, annealed: float, lr: float, warmup: int) -> float:
    """lr · min(1, (step + 1)/warmup) · (1 - annealed): linear warm-up, and linear decay to 0 over the run."""
    return lr * min(1.0, (step + 1) / max(warmup, 1)) * max(1.0 - annealed, 0.0)


_NAMES = ("step", "exp_avg", "exp_avg_sq")
"""The names of `Moments` in a checkpoint."""


class Moments(NamedTuple):
    """Adam's state of one parameter: its step count, and the running means of g and g²."""

    step: Tensor
    first: Tensor
    second: Tensor


class Optimizer:
    """θ ← θ - η_k (m̂/(√v̂ + ε) + λ_k θ). |g| is clipped; η_k and λ_k decay linearly to 0; biases are not decayed."""

    def __init__(self, network: nn.Module, config: LearnerConfig) -> None:
        self.config = config
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        device = self.parameters[0].device
        # Tensors, so that a CUDA graph of the step reads their current values.
        self.lr = torch.zeros((), device=device)
        self.decay = torch.zeros((), device=device)
        # The functional form of AdamW is equal to the bit. The object takes a tenth of a small network's learner step,
        # and loads a compiler, which takes a second.
        self.moments = [
            Moments(torch.zeros((), device=device), torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters
        ]

    def schedule(self, learner_step: int, annealed: float) -> None:
        """Set η_k and λ_k for the next step."""
        self.lr.fill_(rate(learner_step, annealed, self.config.lr, self.config.warmup))
        self.decay.fill_(self.config.weight_decay * max(1.0 - annealed, 0.0))

    @torch.no_grad()
    def apply(self, loss: Tensor, grads: Grads) -> tuple[Tensor, Tensor]:
        """Clip and apply the gradients; returns (their norm before clipping, whether they were applied).

        A non-finite loss or norm leaves weights and moments unchanged. Both results stay on the device: no host sync.
        """
        if torch.compiler.is_compiling():
            return self._apply_in_graph(loss, grads)
        every = zip(self.parameters, grads, self.moments, strict=True)
        used = [(p, _in_layout_of(p, g), moments) for p, g, moments in every if g is not None]
        parameters: list[Tensor] = [p for p, _, _ in used]
        gradients = [g for _, g, _ in used]
        norm = nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        if self.config.weight_decay:
            torch._foreach_mul_([p for p in parameters if p.dim() > 1], 1 - self.lr * self.decay * finite)
        steps, first, second = ([moments[i] for _, _, moments in used] for i in range(3))
        adam(
            parameters,
            gradients,
            first,
            second,
            [],
            steps,
            fused=True,
            capturable=True,
            found_inf=(~finite).float(),  # 1: the fused kernel skips the step
            amsgrad=False,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            lr=self.lr,
            weight_decay=0.0,  # λ_k is not constant: the weights are decayed above
            eps=self.config.adam_eps,
            maximize=False,
        )
        return norm, finite

    def _apply_in_graph(self, loss: Tensor, grads: Grads) -> tuple[Tensor, Tensor]:
        """`apply` in elementary operations, which a compiler fuses; equal to rounding."""
        every = zip(self.parameters, grads, self.moments, strict=True)
        used = [(parameter, grad, moments) for parameter, grad, moments in every if grad is not None]
        norm = torch.stack([g.square().sum() for _, g, _ in used]).sum().sqrt()
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        clip = (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        (beta1, beta2), eps = self.config.betas, self.config.adam_eps
        lr = self.lr * finite
        for parameter, grad, old in used:
            grad = torch.where(finite, grad * clip, 0.0)
            step = old.step + finite
            first = torch.where(finite, torch.lerp(old.first, grad, 1 - beta1), old.first)
            second = torch.where(finite, beta2 * old.second + (1 - beta2) * grad * grad, old.second)
            if self.config.weight_decay and parameter.dim() > 1:
                parameter.mul_(1 - lr * self.decay)
            deviation = (second / (1 - beta2**step)).sqrt() + eps
            parameter.sub_(torch.where(finite, lr / (1 - beta1**step) * first / deviation, 0.0))
            for kept, value in zip(old, (step, first, second), strict=True):
                kept.copy_(value)
        return norm, finite

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments and step counts, as `torch.optim.AdamW` numbers them with biases in a second group."""
        return {"state": {i: dict(zip(_NAMES, x, strict=True)) for i, x in enumerate(self._weights_first())}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. A parameter without an entry has had no gradient: its moments are 0.

        Every tensor keeps its memory and layout: the fused kernel reads weights and moments in memory order, so moments
        in row-major order would be applied to the wrong weights of a channels-last convolution.
        """
        saved: dict[int, dict[str, Tensor]] = state["state"]
        if unknown := saved.keys() - set(range(len(self.parameters))):
            raise KeyError(f"moments of parameters {unknown}, of which there are {len(self.parameters)}")
        for i, moments in enumerate(self._weights_first()):
            for name, kept in zip(_NAMES, moments, strict=True):
                kept.copy_(saved[i][name] if i in saved else torch.zeros_like(kept))

    def _weights_first(self) -> list[Moments]:
        pairs = zip(self.parameters, self.moments, strict=True)
        return [moments for _, moments in sorted(pairs, key=lambda pair: pair[0].dim() <= 1)]


def _in_layout_of(parameter: Tensor, grad: Tensor) -> Tensor:
    """`grad` with the strides of `parameter`: the fused kernel reads both in memory order, and checks no shapes."""
    if grad.shape != parameter.shape:
        raise ValueError(f"a gradient of shape {tuple(grad.shape)} for a parameter of shape {tuple(parameter.shape)}")
    return grad if grad.stride() == parameter.stride() else torch.empty_like(parameter).copy_(grad)
