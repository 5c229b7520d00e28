"""The table of diagnostics: measurements on a batch, taken every `log.diagnostics_every` learner steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from casa import tables
from casa.diagnostics import effective_rank, measure_conflict
from casa.heads import HeadOutput
from casa.learn.objective import objective
from casa.nn import Network
from casa.rollout.ring import Batch
from casa.runtime.streams import Graphed, Readback

if TYPE_CHECKING:
    from casa.learn.learner import Learner

Diagnostic = Callable[["Learner", "Batch"], dict[str, float]]
"""(learner, the batch that it trains on next) -> scalars for the metrics."""

FEWEST, MOST = 2, 8
"""Bounds of the number of sequences that are measured if `log.diagnostics_sequences` is 0: a quarter of the batch."""
CHI_STATES = 8
"""States at which χ is then measured."""


class ConflictMeter:
    """The columns of `measure_conflict` on some sequences of a batch, in fp32; on CUDA one graph.

    Which sequences rotates with the learner step. `network` is the learner's, uncompiled: `torch.compile` hides layers.
    """

    def __init__(self, learner: Learner, network: Network) -> None:
        self.learner, self.network = learner, network
        asked, batch = learner.config.log.diagnostics_sequences, learner.config.data.batch
        self.sequences = min(asked or min(max(batch // 4, FEWEST), MOST), batch)
        self._batch: Batch | None = None
        self._names: tuple[str, ...] = ()
        self._measure = Graphed(self._measure_now, learner.device)
        self._read = Readback(learner.device)
        first = (module for module in network.outputs.modules() if isinstance(module, nn.Linear))
        self._features = next(first, None)

    def __call__(self, batch: Batch) -> dict[str, float]:
        """The columns, without those that are not finite."""
        self._place(batch)
        numbers = torch.from_numpy(self._read(self._measure()))
        count = len(self._names)
        found = dict(zip(self._names, numbers[:count].tolist(), strict=True))
        if len(numbers) > count:
            side = math.isqrt(len(numbers) - count)
            found["feature_rank"] = effective_rank(numbers[count:].view(side, side))
        found["measured_sequences"] = self.sequences
        return {name: x for name, x in found.items() if math.isfinite(x)}

    def _place(self, batch: Batch) -> None:
        """Copy the sequences to measure to where `_measure` reads them; a CUDA graph needs the same memory always."""
        free = batch.rewards.shape[1] - self.sequences + 1
        first = self.learner.steps // max(self.learner.config.log.diagnostics_every, 1) % free
        chosen = slice(first, first + self.sequences)
        given = Batch._make([*(x[:, chosen] for x in batch[:-1]), batch.state[chosen]])
        if self._batch is None or self.learner.device.type == "cpu":
            self._batch = Batch(*(x.clone() for x in given))
            return
        for mine, new in zip(self._batch, given, strict=True):
            mine.copy_(new)

    def _measure_now(self) -> Tensor:
        """The columns of `_names`, then the Gram matrix of the features, in one tensor."""
        learner, batch = self.learner, self._batch
        assert batch is not None
        trained = slice(learner.burn_in, None)
        state = learner.unroll_burn_in(self.network, batch)
        steps = learner.trained_steps(batch, torch.ones_like(batch.rewards[0]))

        def targets(out: HeadOutput) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                target = None if learner.target is None else learner.unroll(learner.target, batch)
                estimate = objective(out, target, steps, learner.agent, log=False).estimate
            return estimate.v, estimate.q

        found = measure_conflict(
            self.network,
            lambda: self.network(batch.obs[trained], state, batch.starts[trained])[0],
            steps.actions,
            targets,
            steps.valid,
            tau=learner.agent.tau if steps.tau_left is None else learner.agent.tau * steps.tau_left,
            recurrent=self.network.state_size > 0,
            features=self._features,
            chi_states=0 if learner.config.log.diagnostics_sequences else CHI_STATES,
        )
        self._names = tuple(found.scalars)
        scalars = torch.stack([x.detach().double() for x in found.scalars.values()])
        return scalars if found.feature_gram is None else torch.cat((scalars, found.feature_gram.double().flatten()))


def conflict(learner: Learner, batch: Batch) -> dict[str, float]:
    """χ, cos β, the other angles and what goes with them; see `casa.diagnostics.measure_conflict`."""
    return learner.conflict(batch)


def noise_scales(row: Mapping[str, Any]) -> dict[str, float | None]:
    """noise_scale_x = tr Σ / |∇|² of each loss, in sequences, from a row's means; None where noise hides the gradient.

    The ratio of the means, since the ratio of one batch has no mean (McCandlish et al., 2018).
    """
    found: dict[str, float | None] = {}
    for name in ("v", "q", "pi"):
        if (variance := row.get(f"grad_variance_{name}")) is not None:
            square = row[f"grad_square_{name}"]
            found[f"noise_scale_{name}"] = variance / square if square > 0 else None
    return found


DIAGNOSTICS: tables.Table[Diagnostic] = tables.DIAGNOSTICS
for _name in ("conflict", "angles"):  # angles: the name in runs of version 0.1
    DIAGNOSTICS.add(_name, conflict, __name__)
