"""Gradient angles, exact for every state of a batch, and conflict between the losses, measured while training."""

from casa.diagnostics.angles import GradientAngles, gradient_angles
from casa.diagnostics.conflict import Conflict, effective_rank, measure_conflict

__all__ = ["Conflict", "GradientAngles", "effective_rank", "gradient_angles", "measure_conflict"]
