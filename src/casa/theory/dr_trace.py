"""Convergence, rate and limit of DR-Trace, V-Trace and ReTrace as operators."""

from __future__ import annotations

from collections.abc import Sequence

from casa.theory.check import Check
from casa.theory.dr_printed import printed_checks, reference_checks, ring_checks
from casa.theory.dr_trained import joint_checks, trained_checks
from casa.theory.measure import measure, problems


def dr_trace_checks(seeds: Sequence[int]) -> list[Check]:
    """All statements about trace operators, from one set of measurements."""
    measured = [measure(seed, problem) for seed, problem in problems(seeds)]
    return [
        *reference_checks(measured),
        *ring_checks(),
        *printed_checks(measured),
        *trained_checks(measured),
        *joint_checks(seeds),
    ]
