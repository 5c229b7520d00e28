"""Gradient angles: χ, cos β, cos⟨∇L_V, ∇J⟩ and cos⟨∇L_V, ∇L_Q⟩, exact for every state of a batch."""

from casa.diagnostics.angles import GradientAngles, gradient_angles

__all__ = ["GradientAngles", "gradient_angles"]
