"""AdamW with the paper's two linear schedules, warm-up and norm clip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from casa.config.fields import LearnerConfig
from casa.learn.shares import Grads


def rate(step: int, progress: float, lr: float, warmup: int) -> float:
    """lr · min(1, (step + 1)/warmup) · (1 - progress): linear up over the warm-up, linear to 0 over the run."""
    return lr * min(1.0, (step + 1) / max(warmup, 1)) * max(1.0 - progress, 0.0)


class Optimizer:
    """θ ← θ - η_k (m̂/(√v̂ + ε) + λ_k θ), with |g| clipped, η_k and λ_k linear to 0; no decay of biases."""

    def __init__(self, network: nn.Module, config: LearnerConfig) -> None:
        self.config = config
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        weights = [p for p in self.parameters if p.dim() > 1]
        biases = [p for p in self.parameters if p.dim() <= 1]
        self.weights: list[Tensor] = list(weights)
        device = self.parameters[0].device
        # Tensors, so that a graph of the step sees their values of now.
        self.lr = torch.zeros((), device=device)
        self.decay = torch.zeros((), device=device)
        self.adam = torch.optim.AdamW(
            [{"params": weights}, {"params": biases}],
            lr=self.lr,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=0.0,  # λ is not constant: `apply` does it
            fused=True,
            capturable=True,
        )

    def schedule(self, learner_step: int, progress: float) -> None:
        """Set η_k and λ_k for the next step."""
        self.lr.fill_(rate(learner_step, progress, self.config.lr, self.config.warmup))
        self.decay.fill_(self.config.weight_decay * max(1.0 - progress, 0.0))

    @torch.no_grad()
    def apply(self, loss: Tensor, grads: Grads) -> tuple[Tensor, Tensor]:
        """Clip, check and apply gradients, by parameter: (their norm before clipping, whether it was applied).

        A loss or a norm that is not finite leaves weights and moments as they are. Nothing is read back here.
        """
        for parameter, grad in zip(self.parameters, grads, strict=True):
            # The fused kernel walks weights and gradients in the order of memory.
            if grad is not None and grad.stride() != parameter.stride():
                grad = torch.empty_like(parameter).copy_(grad)
            parameter.grad = grad
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm)
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        trained = [weight for weight in self.weights if weight.grad is not None]
        torch._foreach_mul_(trained, 1 - self.lr * self.decay * finite)
        self.adam.found_inf = (~finite).float()  # type: ignore[attr-defined]  # what the fused kernel looks for
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return norm, finite

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts."""
        return {"state": self.adam.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, in the memory layout of the weights.

        The fused kernel walks weights and moments in the order of memory: moments that were read back row by row
        would meet the wrong weights of a channels-last convolution.
        """
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state["state"]})
        for group in self.adam.param_groups:
            group["lr"] = self.lr
        for parameter in self.parameters:
            moments = self.adam.state[parameter]
            for name, value in moments.items():
                if value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)
