"""AdamW with the paper's two linear schedules, warm-up and gradient-norm clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from casa.config.fields import LearnerConfig
from casa.learn.shares import Grads


def rate(step: int, annealed: float, lr: float, warmup: int) -> float:
    """lr · min(1, (step + 1)/warmup) · (1 - annealed): linear warm-up, and linear decay to 0 over the run."""
    return lr * min(1.0, (step + 1) / max(warmup, 1)) * max(1.0 - annealed, 0.0)


class Optimizer:
    """θ ← θ - η_k (m̂/(√v̂ + ε) + λ_k θ). |g| is clipped; η_k and λ_k decay linearly to 0; biases are not decayed."""

    def __init__(self, network: nn.Module, config: LearnerConfig) -> None:
        self.config = config
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        weights = [p for p in self.parameters if p.dim() > 1]
        biases = [p for p in self.parameters if p.dim() <= 1]
        self.weights: list[Tensor] = list(weights)
        device = self.parameters[0].device
        # Tensors, so that a CUDA graph of the step reads their current values.
        self.lr = torch.zeros((), device=device)
        self.decay = torch.zeros((), device=device)
        self.adam = torch.optim.AdamW(
            [{"params": weights}, {"params": biases}],
            lr=self.lr,
            betas=config.betas,
            eps=config.adam_eps,
            weight_decay=0.0,  # λ_k is not constant: `apply` decays the weights
            fused=True,
            capturable=True,
        )
        self._moments: list[dict[str, Tensor]] = []  # of each parameter, for a compiled step

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
        for parameter, grad in zip(self.parameters, grads, strict=True):
            # The fused kernel reads weights and gradients in memory order, so their strides must agree.
            if grad is not None and grad.stride() != parameter.stride():
                grad = torch.empty_like(parameter).copy_(grad)
            parameter.grad = grad
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm)
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        if self.config.weight_decay:
            trained = [weight for weight in self.weights if weight.grad is not None]
            torch._foreach_mul_(trained, 1 - self.lr * self.decay * finite)
        self.adam.found_inf = (~finite).float()  # type: ignore[attr-defined]  # 1: the fused kernel skips the step
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return norm, finite

    def prepare_graph(self) -> None:
        """Create the moments, so that a compiled step finds them; without this Adam creates them in its first step."""
        for parameter in self.parameters:
            if not self.adam.state[parameter]:
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.adam.state[parameter] = {"step": torch.zeros(()), **zeros}
        self._moments = [self.adam.state[parameter] for parameter in self.parameters]

    def _apply_in_graph(self, loss: Tensor, grads: Grads) -> tuple[Tensor, Tensor]:
        """`apply` in elementary operations, which a compiler fuses; equal to rounding."""
        every = zip(self.parameters, grads, self._moments, strict=True)
        used = [(parameter, grad, state) for parameter, grad, state in every if grad is not None]
        norm = torch.stack([g.square().sum() for _, g, _ in used]).sum().sqrt()
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        clip = (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        (beta1, beta2), eps = self.config.betas, self.config.adam_eps
        lr = self.lr * finite
        for parameter, grad, state in used:
            grad = torch.where(finite, grad * clip, 0.0)
            step = state["step"] + finite
            first = torch.where(finite, torch.lerp(state["exp_avg"], grad, 1 - beta1), state["exp_avg"])
            second = torch.where(finite, beta2 * state["exp_avg_sq"] + (1 - beta2) * grad * grad, state["exp_avg_sq"])
            if self.config.weight_decay and parameter.dim() > 1:
                parameter.mul_(1 - lr * self.decay)
            deviation = (second / (1 - beta2**step)).sqrt() + eps
            parameter.sub_(torch.where(finite, lr / (1 - beta1**step) * first / deviation, 0.0))
            for name, value in (("step", step), ("exp_avg", first), ("exp_avg_sq", second)):
                state[name].copy_(value)
        return norm, finite

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments and step counts."""
        return {"state": self.adam.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`, in the memory layout of the weights.

        The fused kernel reads weights and moments in memory order. Moments loaded in row-major order would be applied
        to the wrong weights of a channels-last convolution.
        """
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state["state"]})
        for group in self.adam.param_groups:
            group["lr"] = self.lr
        for parameter in self.parameters:
            moments = self.adam.state[parameter]
            for name, value in moments.items():
                if value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)
        if self._moments:
            self.prepare_graph()
