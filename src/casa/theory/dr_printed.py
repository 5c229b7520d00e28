"""V-Trace and ReTrace as controls, and theorem 4 with its lemmas as the paper prints them."""

from __future__ import annotations

import torch

from casa.theory.affine import value_map
from casa.theory.check import Check, Statement, below, identity
from casa.theory.mdp import ring
from casa.theory.measure import DISCOUNT, EVERYWHERE, Measured
from casa.theory.operators import OffPolicy, centred_value, v_trace


def reference_checks(measured: list[Measured]) -> list[Check]:
    """V* = V^π̃ for V-Trace and Q* = Q^π for ReTrace: known results, so they validate the checks."""
    proper = [m.references for m in measured if m.c_bar <= m.rho_bar]
    return [
        identity(
            Statement(
                "vtrace-fixed-point",
                "V-Trace's fixed point is the value of the clipped policy π̃",
                "V* = V^π̃",
                "Espeholt et al. 2018; control",
            ),
            f"largest |V* - V^π̃|, {EVERYWHERE}",
            [m.references.v_to_pi_tilde for m in measured],
        ),
        identity(
            Statement(
                "vtrace-rate",
                "V-Trace is a sup-norm contraction where c̄ <= ρ̄",
                "Lipschitz constant <= 1 - (1 - γ) min_s E_μ[ρ]",
                "Espeholt et al. 2018; control",
            ),
            "largest excess of the constant over the bound, c̄ <= ρ̄",
            [max(0.0, m.v_lipschitz - m.v_bound) for m in proper],
            note=f"The constant is at most {max(m.v_lipschitz for m in proper):.4f}.",
        ),
        identity(
            Statement(
                "retrace",
                "ReTrace's fixed point is Q^π, at a rate of γ or better",
                "Q* = Q^π, Lipschitz constant <= γ",
                "Munos et al. 2016; control",
            ),
            f"largest |Q* - Q^π| or excess over γ, {EVERYWHERE}",
            [max(m.references.retrace_to_pi, m.references.retrace_lipschitz - DISCOUNT, 0.0) for m in measured],
        ),
    ]


def ring_checks() -> list[Check]:
    """V-Trace with c̄ > ρ̄ on a ring, where π is uniform over both directions and μ prefers one."""
    problem = ring_problem()
    v_radius = value_map(v_trace, problem).radius
    dr_radius = value_map(centred_value, problem).radius
    return [
        below(
            Statement(
                "vtrace-needs-small-c",
                "V-Trace also converges where c̄ > ρ̄",
                "spectral radius < 1",
                "extra",
            ),
            "spectral radius on a ring of 20 states, γ = 0.95, ρ̄ = 1, no c̄",
            [v_radius],
            1.0,
            note=f"DR-Trace with centred Q has {dr_radius:.4f} on the same ring.",
        )
    ]


def ring_problem() -> OffPolicy:
    """π = (½, ½) and μ = (0.9, 0.1) on a ring of 20 states, ρ̄ = 1, c unclipped."""
    mdp = ring(20, discount=0.95)
    pi = torch.full((20, 2), 0.5, dtype=torch.float64)
    mu = torch.tensor([0.9, 0.1], dtype=torch.float64).repeat(20, 1)
    return OffPolicy(mdp, pi, mu, rho_bar=1.0, c_bar=1e9)


def printed_checks(measured: list[Measured]) -> list[Check]:
    """U(Q, V) = (T(Q) - E_π[Q] + S(V), S(V)), its lemmas, and the steps of its proof."""
    clipped = [m for m in measured if m.rho_bar < 1e9]
    proper = [m.printed for m in measured if m.c_bar <= m.rho_bar]
    improper = [m.printed for m in measured if m.c_bar > m.rho_bar]
    radii = [m.printed.literal_radius for m in measured]
    return [
        identity(
            Statement(
                "dr-lemma-q",
                "T(Q), with V = E_π[Q], is a sup-norm contraction with the paper's constant, where c̄ <= ρ̄",
                "C = 1 - (1 - γ) E_μ[Σ_k γ^k c_{[t+1:t+k-1]} ρ̃_{t,k}] <= γ",
                "lemma E.3",
            ),
            "largest excess of the Lipschitz constant over C, or of C over γ",
            [max(0.0, p.tied_lipschitz - p.tied_bound, p.tied_bound - DISCOUNT) for p in proper],
            note=f"Its fixed point is Q^π, to {max(m.printed.tied_to_pi for m in measured):.0e}. "
            f"Where c̄ > ρ̄, the constant is up to {max(p.tied_lipschitz for p in improper):.2f}.",
        ),
        identity(
            Statement(
                "dr-lemma-v",
                "S(V), with A held fixed, has the rate of V-Trace",
                "∂S/∂V at fixed A = ∂(V-Trace)/∂V",
                "lemma E.4",
            ),
            "largest difference of the two matrices",
            [m.printed.value_matrix_difference for m in measured],
        ),
        identity(
            Statement(
                "dr-advantage-alone",
                "The advantage A* that T settles at does not depend on V",
                "A*(V₁) = A*(V₂)",
                "theorem E.1, proof",
            ),
            "largest |A*(V₁) - A*(V₂)|, two random V held fixed",
            [m.printed.advantage_shift for m in measured],
            note="So the two halves cannot be studied apart, as the proof does.",
        ),
        identity(
            Statement(
                "dr-stays-centred",
                "U as printed keeps Q centred, as the proof assumes",
                "E_π[Q] = V => E_π[T(Q) - E_π[Q] + S(V)] = S(V)",
                "theorem E.1, proof",
            ),
            "largest |E_π[Q] - V| after one step from a centred start",
            [m.printed.centring_defect for m in measured],
            note="The head centres T, not T minus the old mean: T - E_π[T] + S. The two readings differ.",
        ),
        below(
            Statement(
                "dr-literal-converges",
                "U as printed converges",
                "U(Q, V) = (T(Q) - E_π[Q] + S(V), S(V))",
                "theorem 4, as printed",
            ),
            f"largest spectral radius, {EVERYWHERE}",
            radii,
            1.0,
            note=f"Smallest: {min(radii):.2f}. It has a fixed point, which is V^π to "
            f"{max(m.printed.literal_to_pi for m in measured):.0e}, but iterating leads away from it.",
        ),
        identity(
            Statement(
                "dr-old-baseline",
                "With V in the place of E_π[Q], as the proof computes, the fixed point is unique",
                "(T(Q) - V + S(V), S(V)) has one fixed point",
                "theorem E.1, proof",
            ),
            "number of eigenvalues 1, of which there may be none",
            [float(max(m.printed.free_directions for m in measured))],
            note="As many as states: (r + γ P V, V) is a fixed point for every V, "
            f"to {max(m.printed.any_value_residual for m in measured):.0e}. Only centring ties V to the rewards.",
        ),
        identity(
            Statement(
                "dr-named-pair",
                "(Q^π̃, V^π̃) is a fixed point of U",
                "U(Q^π̃, V^π̃) = (Q^π̃, V^π̃)",
                "theorem 4",
            ),
            "largest residual where ρ̄ <= 1.05",
            [m.printed.residual_at_pi_tilde for m in clipped],
            note="E_π[Q^π̃] is not V^π̃: a head that is centred under π cannot represent the pair.",
        ),
    ]
