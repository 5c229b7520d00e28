"""Targets V^ and Q^ from a sequence of experience: pure functions of time-major [T, B] tensors.

All functions share these names, at times t = 0 … T-1: `rewards[t]`, `discounts[t]` = γ (1 - terminated) and
`ends[t]` = terminated or truncated belong to the transition sₜ → sₜ₊₁; `values[t]` = V(sₜ); `next_values[t]` =
V(sₜ₊₁), taken at the final observation where an episode was truncated; `log_rhos[t]` = log π - log μ of the taken
action. The reward of sₜ → sₜ₊₁ is rₜ here, but rₜ₊₁ in Sutton and Barto and in rlax. Results are detached, and
accumulated in fp32 or better for any input dtype.
"""

from casa.targets.categorical import n_step_categorical
from casa.targets.dr_trace import dr_trace
from casa.targets.gae import gae
from casa.targets.n_step_q import double_q, h, h_inverse, n_step_q
from casa.targets.retrace import retrace
from casa.targets.scan import clipped_ratios, one_step
from casa.targets.trust_region import trust_region
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
    "n_step_categorical",
    "n_step_q",
    "one_step",
    "retrace",
    "trust_region",
    "vtrace",
    "vtrace_advantage",
]
