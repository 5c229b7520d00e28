"""One learner step: burn-in, unroll, targets, losses, optimizer, priorities."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from casa.config.fields import RunConfig
from casa.errors import UserError
from casa.heads import HeadOutput
from casa.learn import shares
from casa.learn.diagnostics import ConflictMeter
from casa.learn.estimators import TARGETS
from casa.learn.gradients import GRADIENTS, added
from casa.learn.objective import Objective, TrainedSteps, objective
from casa.learn.optimizer import Optimizer
from casa.learn.shares import Grads
from casa.nn import Network
from casa.rollout.ring import Batch
from casa.rollout.sum_tree import sequence_priority
from casa.runtime.compiled import Compiled
from casa.runtime.seeds import seed_for
from casa.runtime.streams import Graphed, Readback

LOG_EVERY = 4
"""Learner steps between those that compute scalars to log, on a CPU; there they cost a fifth of a small step."""
LARGEST_WEIGHT = 1e6
"""Weights beyond this are broken, even if they are finite: those of a trained network are below 100."""


class Diverged(UserError):
    """Too many consecutive learner steps had a non-finite loss or gradient, or the weights are broken."""


class Result(NamedTuple):
    """Result of a learner step, on the host: priorities [B], scalars to log, whether the weights changed.

    `scalars` always has loss, gradient_norm and version; the others are there every `LOG_EVERY` steps on a CPU.
    """

    priorities: np.ndarray
    scalars: dict[str, float]
    applied: bool


Made = TypeVar("Made")


class Gradient(NamedTuple):
    """The loss, ∇ loss per parameter (None: not used by the loss), TD errors [T, B] and scalars to log."""

    loss: Tensor
    grads: Grads
    td_errors: Tensor
    scalars: dict[str, Tensor]


class Learner:
    """θ ← θ - η ∇(α₁ L_V + α₂ L_Q - α₃ J) on sequences, with R2D2's target network if the targets need one.

    On CUDA the whole step, from the batch to the new weights, is one CUDA graph. compile=yes compiles the backbone and
    the recurrent cell, and on a CPU with one worker the whole step; if that fails, `fall_back` means eager kernels,
    otherwise an error. On a CPU, `workers` threads share the sequences of a batch. They synchronise twice per step,
    intra-op threads in every operation.
    """

    def __init__(self, network: Network, config: RunConfig, workers: int = 1, fall_back: bool = True) -> None:
        self.network, self.config = network, config
        self.agent, self.burn_in = config.agent, config.data.burn_in
        self.optimizer = Optimizer(network, config.learner)
        needs_target = TARGETS[self.agent.targets].needs_target_network
        self.target = copy.deepcopy(network) if needs_target else None
        if self.target is not None:
            self.target.requires_grad_(False)
        self.device = next(network.parameters()).device
        self.bf16 = config.precision == "bf16"
        measured = network
        alone = type(self).differentiate is Learner.differentiate  # the gradient needs no other process
        whole = alone and compiles_whole_step(network, config, workers)
        if config.compile == "yes" and not whole:
            tensors = (*network.parameters(), *network.buffers())
            measured = copy.deepcopy(network, {id(x): x for x in tensors})  # the same weights, never compiled
            torch._dynamo.config.suppress_errors = fall_back
            network.compile_backbones()
            if network.core is not None:
                network.core.cell.compile(dynamic=False)
        self.steps = 0  # learner steps, including skipped ones
        self.skipped = 0
        self.bad_in_a_row = 0
        self._batch: Batch | None = None
        self._weights = torch.ones(config.data.batch, device=self.device)
        self._names: tuple[str, ...] = ()
        # f(ε) of the network and of the target network [2, noise_size], in the same memory always for a CUDA graph.
        self._noise: Tensor | None = None
        self._generator = torch.Generator(self.device)
        self._log = True
        self._log_every = LOG_EVERY if self.device.type == "cpu" and not whole else 1  # a compiled step has one graph
        self._train: Callable[[], Tensor] = Graphed(self._train_now, self.device)
        if whole:
            self._train = Compiled(self._train_now, fall_back)
        self._read = Readback(self.device)
        self.conflict = ConflictMeter(self, measured)
        self.workers = workers
        self._pool = ThreadPoolExecutor(max(workers - 1, 1), "casa-learner")

    def step(self, batch: Batch, weights: Tensor, annealed: float) -> Result:
        """One update on B sequences, weighted by `weights` [B]; `annealed`: 0 (peak learning rate) to 1 (rate 0)."""
        self._place(batch, weights)
        self.renew_noise()
        self.optimizer.schedule(self.steps, annealed)
        self._log = self.steps % self._log_every == 0
        numbers = self._read(self._train())
        count = len(self._names)
        applied, scalars, priorities = numbers[0] > 0, numbers[1 : count + 1].tolist(), numbers[count + 1 :]
        self.steps += 1
        self._count(bool(applied), batch, weights)
        if self.target is not None and self.steps % self.config.learner.target_period == 0:
            self.target.load_state_dict(self.network.state_dict())
        return Result(priorities.copy(), dict(zip(self._names, scalars, strict=True)), bool(applied))

    def renew_noise(self) -> None:
        """Draw the noise of this step. It depends on the run's seed and the learner step, not on earlier draws."""
        if not self.network.noise_size:
            return
        self._generator.manual_seed(seed_for(self.config.seed, "noise", self.steps))
        drawn = self.network.draw_noise(2, self._generator)
        if self._noise is None:
            self._noise = drawn
        else:
            self._noise.copy_(drawn)

    def _place(self, batch: Batch, weights: Tensor) -> None:
        """Put a batch where `_train` reads it; on CUDA always in the same memory, as its graph requires."""
        if self.device.type == "cpu":
            self._batch, self._weights = batch, weights
            return
        if self._batch is None:
            self._batch = Batch(*(x.clone() for x in batch))
        for mine, given in zip((*self._batch, self._weights), (*batch, weights), strict=True):
            mine.copy_(given)

    def _train_now(self) -> Tensor:
        """One step on the batch from `_place`: (applied, the scalars of `_names`, priorities) in one tensor."""
        batch = self._batch
        assert batch is not None
        self._update_normalizer(batch)
        gradient = self.differentiate(batch, self._weights)
        norm, applied = self.optimizer.apply(gradient.loss, gradient.grads)
        priorities = sequence_priority(gradient.td_errors, batch.valid[self.burn_in :], self.config.data.eta)
        scalars = {"loss": gradient.loss, **gradient.scalars, "gradient_norm": norm}
        scalars["version"] = batch.versions.float().mean()
        self._names = tuple(scalars)
        return torch.cat((torch.stack((applied.float(), *scalars.values())), priorities.float()))

    def _update_normalizer(self, batch: Batch) -> None:
        if self.network.normalizer is None:
            return
        self.network.normalizer.update(batch.obs)
        if self.target is not None and self.target.normalizer is not None:  # both networks see the same input
            for mine, theirs in zip(self.target.normalizer.buffers(), self.network.normalizer.buffers(), strict=True):
                mine.copy_(theirs)

    def differentiate(self, batch: Batch, weights: Tensor) -> Gradient:
        """∇ loss on a batch.

        With several workers: ∂loss/∂outputs of the whole batch, then ∂loss/∂outputs · ∂outputs/∂θ of each worker's
        share, summed.
        """
        if self.workers == 1:
            result = self.compute(batch, weights, self._log)
            grads = self._gradient(result)
            return Gradient(result.loss.detach(), grads, result.td_errors, result.scalars)
        parts = shares.split(batch, self.workers)
        found = self._side_by_side(self.outputs, [(part,) for part in parts])
        outs = [out for out, _ in found]
        targets = [target for _, target in found if target is not None]
        target = shares.join(targets) if targets else None
        sizes = [part.rewards.shape[1] for part in parts]
        result, pieces = self.slopes(shares.join(outs), target, self.trained_steps(batch, weights), sizes)
        parts_grads = self._side_by_side(self.pull_back, list(zip(outs, pieces, strict=True)))
        return Gradient(result.loss.detach(), shares.add(parts_grads), result.td_errors, result.scalars)

    def _gradient(self, result: Objective) -> Grads:
        """The gradient to follow, as `agent.gradients` makes it from those of the losses."""
        parameters, combine = self.optimizer.parameters, GRADIENTS[self.agent.gradients]
        if combine is added:
            return torch.autograd.grad(result.loss, parameters, allow_unused=True)
        each = [x for x in result.weighted if x.requires_grad]  # a loss may be constant
        return combine([torch.autograd.grad(x, parameters, retain_graph=True, allow_unused=True) for x in each])

    def slopes(
        self, out: HeadOutput, target: HeadOutput | None, trained: TrainedSteps, sizes: list[int]
    ) -> tuple[Objective, list[Grads]]:
        """The objective of the outputs of a whole batch, and ∂loss/∂outputs of its parts of `sizes` sequences."""
        joined = out.map(lambda x: x.detach().requires_grad_())
        result = objective(joined, target, trained, self.agent, self._log)
        slopes = torch.autograd.grad(result.loss, joined.tensors(), allow_unused=True)
        return result, shares.pieces(slopes, sizes)

    def pull_back(self, out: HeadOutput, slopes: Sequence[Tensor | None]) -> Grads:
        """Σ slope · ∂output/∂θ, with slope = ∂loss/∂output; outputs without a slope or a gradient are skipped."""
        pairs = [(x, slope) for x, slope in zip(out.tensors(), slopes, strict=True) if x.requires_grad]
        outputs, cotangents = zip(*((x, slope) for x, slope in pairs if slope is not None), strict=True)
        return torch.autograd.grad(outputs, self.optimizer.parameters, cotangents, allow_unused=True)

    def _side_by_side(self, function: Callable[..., Made], arguments: list[Any]) -> list[Made]:
        """[function(*each) for each in arguments], in parallel; the first call runs in this thread."""
        others = [self._pool.submit(function, *each) for each in arguments[1:]]
        return [function(*arguments[0]), *(other.result() for other in others)]

    def compute(self, batch: Batch, weights: Tensor, log: bool = True) -> Objective:
        """The objective on a batch, with its autograd graph."""
        return objective(*self.outputs(batch), self.trained_steps(batch, weights), self.agent, log)

    @torch.no_grad()
    def fault(self) -> str:
        """What is wrong with the weights (`fault_of`), or with the loss that they give on the last batch; else ""."""
        found = fault_of(self.network.state_dict())
        if not found and self._batch is not None:
            loss = self.compute(self._batch, self._weights).loss
            found = "" if loss.isfinite() else f"the loss of the last batch has become {loss.item():g}"
        return found

    def trained_steps(self, batch: Batch, weights: Tensor) -> TrainedSteps:
        """The transitions after the burn-in."""
        trained = slice(self.burn_in, None)
        return TrainedSteps(
            batch.actions[trained],
            batch.log_mu[trained],
            batch.rewards[trained],
            batch.terminated[trained],
            batch.truncated[trained],
            batch.valid[trained],
            weights if self.config.data.kind == "prioritized" else None,
            self.network.return_scale if self.agent.reward_scale == "return" else None,
            batch.policy[trained] if self.agent.trust_region else None,
            self.network.tau_left,
        )

    def outputs(self, batch: Batch) -> tuple[HeadOutput, HeadOutput | None]:
        """(V, Q, log π) at the T + 1 observations after the burn-in, and the same of the target network, or None.

        The two have independent noise, each the same for the whole batch.
        """
        mine, theirs = (None, None) if self._noise is None else self._noise.split(1)
        out = self.unroll(self.network, batch, mine)
        if self.target is None:
            return out, None
        with torch.no_grad():
            return out, self.unroll(self.target, batch, theirs)

    def unroll(self, network: Network, batch: Batch, noise: Tensor | None = None) -> HeadOutput:
        """(V, Q, log π) of `network` at the T + 1 observations after the burn-in."""
        with self.autocast():
            state = self.unroll_burn_in(network, batch)
            out, _ = network(batch.obs[self.burn_in :], state, batch.starts[self.burn_in :], noise)
        return out

    def unroll_burn_in(self, network: Network, batch: Batch) -> Tensor:
        """The recurrent state after the burn-in, unrolled from the stored state without gradients."""
        if not (self.burn_in and network.state_size):
            return batch.state
        with torch.no_grad():
            _, state = network(batch.obs[: self.burn_in], batch.state, batch.starts[: self.burn_in])
        return state

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """bf16 for the network if `precision` is bf16; heads, targets and losses are always fp32."""
        # No cast cache with several workers: weights cast by one thread must not enter another thread's autograd graph.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=self.workers == 1)

    def _count(self, applied: bool, batch: Batch, weights: Tensor) -> None:
        self.bad_in_a_row = 0 if applied else self.bad_in_a_row + 1
        self.skipped += not applied
        if self.bad_in_a_row >= self.config.learner.max_bad_steps:
            with torch.no_grad():
                described = _describe(batch, self.compute(batch, weights))
            raise Diverged(
                f"the loss or its gradient was not finite in {self.bad_in_a_row} learner steps in a row; "
                f"a smaller learner.lr (now {self.config.learner.lr:g}) often helps. The last batch: {described}"
            )


def compiles_whole_step(network: Network, config: RunConfig, workers: int) -> bool:
    """Whether to compile the whole learner step: on a CPU, in fp32, without a core, whose loop would be unrolled."""
    small = network.return_scale.device.type == "cpu" and workers == 1 and network.core is None
    return config.compile == "yes" and small and config.precision != "bf16"


def fault_of(state: Mapping[str, Tensor]) -> str:
    """What is wrong with a network's weights, "" if nothing: they must be finite and at most `LARGEST_WEIGHT`.

    Statistics of observations and returns are in their units, so those need only be finite.
    """
    for name, x in state.items():
        if not x.is_floating_point():
            continue
        if not x.isfinite().all():
            return f"{name} holds NaN or infinity"
        largest = x.abs().max().item()
        if largest > LARGEST_WEIGHT and not name.startswith(("normalizer.", "return_scale")):
            return f"{name} has grown to {largest:.2g}"
    return ""


def _describe(batch: Batch, result: Objective) -> str:
    def span(name: str, x: Tensor) -> str:
        x = x.float()
        return f"{name} {x.min().item():.4g} to {x.max().item():.4g}"

    parts = [span("reward", batch.rewards), span("log mu", batch.log_mu), span("V^", result.estimate.v)]
    return "; ".join([*parts, *(f"{k} {v.item():.4g}" for k, v in result.scalars.items())])
