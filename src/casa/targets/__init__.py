"""Targets V^ and Q^ from a sequence of experience: pure functions of time-major [T, B] tensors.

One vocabulary for all of them, at times t = 0 … T-1: `rewards[t]`, `discounts[t]` = γ (1 - terminated) and
`ends[t]` = terminated or truncated are of the transition sₜ → sₜ₊₁; `values[t]` = V(sₜ); `next_values[t]` =
V(sₜ₊₁), with the final observation's value where an episode was truncated; `log_rhos[t]` = log π - log μ of
the taken action. Sutton and Barto, and rlax with them, call the reward of sₜ → sₜ₊₁ rₜ₊₁; here it is rₜ.
Results are detached, and accumulated in fp32 or better whatever the inputs are.
"""

from casa.targets.dr_trace import dr_trace
from casa.targets.gae import gae
from casa.targets.n_step_q import double_q, h, h_inverse, n_step_q
from casa.targets.retrace import retrace
from casa.targets.scan import clipped_ratios, one_step
from casa.targets.types import Targets
from casa.targets.vtrace import vtrace, vtrace_advantage

__all__ = [
    "Targets",
    "clipped_ratios",
    "double_q",
    "dr_trace",
    "gae",
    "h",
    "h_inverse",
    "n_step_q",
    "one_step",
    "retrace",
    "vtrace",
    "vtrace_advantage",
]
