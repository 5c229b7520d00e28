"""The table of diagnostics: measurements on a batch, taken every `log.diagnostics_every` learner steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from casa import tables

if TYPE_CHECKING:
    from casa.learn.learner import Learner
    from casa.rollout.ring import Batch

Diagnostic = Callable[["Learner", "Batch"], dict[str, float]]
"""(learner, the batch that it trains on next) -> scalars for the metrics."""


def angles(learner: Learner, batch: Batch) -> dict[str, float]:
    """χ, cos β, cos⟨L_V, J⟩ and cos⟨L_V, L_Q⟩; see `casa.diagnostics.gradient_angles`."""
    return learner.angles(batch)


DIAGNOSTICS: tables.Table[Diagnostic] = tables.DIAGNOSTICS
DIAGNOSTICS.add("angles", angles, __name__)
