"""DR-Trace as used in training, with Q centred under π: its limit, its rates, and the effect of J."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from casa.theory.affine import pair_map, split
from casa.theory.check import Check, Statement, below, identity
from casa.theory.measure import C_BARS, DISCOUNT, EVERYWHERE, RHO_BARS, Measured, distance, problems
from casa.theory.operators import OffPolicy, with_policy_gradient


def trained_checks(measured: list[Measured]) -> list[Check]:
    """(Q, V) <- (T - E_π[T] + S, S): convergence, fixed point and rates, compared with V-Trace."""
    clipped = [m for m in measured if m.rho_bar < 1e9]
    trained = [m.trained for m in measured]
    slower = sum(m.trained.radius > m.references.v_radius + 1e-9 for m in clipped)
    by_c_bar = {c_bar: max(m.trained.behaviour_radius for m in measured if m.c_bar == c_bar) for c_bar in C_BARS}
    return [
        below(
            Statement(
                "dr-converges",
                "DR-Trace as trained, Q centred under π, converges for every ρ̄ and c̄",
                "(Q, V) <- (T - E_π[T] + S, S), spectral radius < 1",
                "theorem 4, as trained",
            ),
            f"largest spectral radius, {EVERYWHERE}; traces infinite or cut at 1, 2, 5 steps",
            [max(t.radius, t.short_horizon_radius) for t in trained],
            1.0,
        ),
        identity(
            Statement(
                "dr-fixed-point-pi-tilde",
                "Its fixed point is the value of the clipped policy π̃, as V-Trace's is",
                "V* = V^π̃",
                "theorem 4; sec. 3.4",
            ),
            "largest |V* - V^π̃| after 16,384 iterations, ρ̄ <= 1.05",
            [m.trained.limit_to_pi_tilde for m in clipped],
            details={"table": fixed_point_table(measured)},
            note="At ρ̄ = 1e9 there is no clipping and π̃ = π.",
        ),
        identity(
            Statement(
                "dr-fixed-point-pi",
                "Its fixed point is the value of π itself, for every ρ̄ and c̄",
                "V* = V^π, Q* = Q^π",
                "extra",
            ),
            f"largest |V* - V^π| or |Q* - Q^π| after 16,384 iterations, {EVERYWHERE}",
            [max(t.limit_to_pi, t.limit_q_to_pi) for t in trained],
        ),
        below(
            Statement(
                "dr-sup-norm",
                "It is a contraction in the sup norm",
                "|U(x) - U(y)| < |x - y|",
                "theorem 4, as trained",
            ),
            f"largest Lipschitz constant on centred (Q, V), {EVERYWHERE}",
            [t.lipschitz for t in trained],
            1.0,
            note=f"Where c̄ <= ρ̄: up to {max(m.trained.lipschitz for m in measured if m.c_bar <= m.rho_bar):.2f}.",
        ),
        below(
            Statement(
                "dr-rate-gamma",
                "It converges at the rate γ or better, as C <= γ suggests",
                "spectral radius < γ",
                "lemma E.3, theorem 4",
            ),
            f"largest spectral radius, {EVERYWHERE}",
            [t.radius for t in trained],
            DISCOUNT,
        ),
        identity(
            Statement(
                "dr-rate-bound",
                "In a weighted norm it is a contraction for every ρ̄ and c̄, at a rate that is known",
                "rate = max_s 1 - (1 - γ) α(s) / (1 - γ κ(s)), α = E_μ[ρ], κ = E_μ[c]",
                "extra",
            ),
            "largest difference of the measured constant and the formula, or excess of the spectral radius",
            [max(abs(t.weighted_lipschitz - t.bound), t.radius - t.bound) for t in trained],
            note="The norm is max_s |((I - γ P_c) V)(s)| / (1 - γ κ(s)).",
        ),
        identity(
            Statement(
                "dr-rate-vtrace",
                "Its convergence rate is V-Trace's",
                "spectral radii are equal",
                "sec. 3.4, appendix D",
            ),
            "largest difference of the two spectral radii, ρ̄ <= 1.05",
            [abs(m.trained.radius - m.references.v_radius) for m in clipped],
            note=f"DR-Trace is the slower one in {slower} of {len(clipped)} problems. "
            "They are equal where ρ is not clipped.",
        ),
        identity(
            Statement(
                "dr-behaviour-fixed-point",
                "The fixed point is V^π also where L_Q is averaged over the actions of μ",
                "Ā = argmin E_μ[(T - V - Ā)²] => V* = V^π",
                "extra",
            ),
            f"largest |V* - V^π|, {EVERYWHERE}",
            [t.behaviour_to_pi for t in trained],
        ),
        below(
            Statement(
                "dr-behaviour-full",
                "Fitted fully at every iteration to actions of μ, it converges for every c̄",
                "spectral radius < 1",
                "extra",
            ),
            f"largest spectral radius, {EVERYWHERE}",
            [t.behaviour_radius for t in trained],
            1.0,
            note="Largest by c̄: " + ", ".join(f"{c_bar:g}: {radius:.3f}" for c_bar, radius in by_c_bar.items()) + ".",
        ),
        below(
            Statement(
                "dr-small-steps",
                "With small gradient steps on actions of μ, it converges for every ρ̄ and c̄",
                "Re λ < 0 for α₁ ∇L_V + α₂ ∇L_Q",
                "extra",
            ),
            f"largest real part, (α₁, α₂) in {{(0.5, 1), (1, 10)}}, {EVERYWHERE}",
            [t.small_step_abscissa for t in trained],
            0.0,
        ),
        identity(
            Statement(
                "dr-multiple",
                "Where Ā is k times the advantage, V* is the value of a signed mixture of π and π̃",
                "Ā = k A => V* = V of (1 - k) π̃ + k π",
                "extra",
            ),
            "largest distance, k in {0, 0.5, 2}",
            [t.multiple_error for t in trained],
            note="k = 0 is V-Trace (π̃), k = 1 is π; k = 2, from L_Q and J at equal weights, is 2 π - π̃.",
        ),
    ]


def fixed_point_table(measured: list[Measured]) -> list[dict[str, Any]]:
    """One row per (ρ̄, c̄): distances of the limit and rates, largest over seeds, and the numbers of each seed."""
    rows = []
    for rho_bar in RHO_BARS:
        for c_bar in C_BARS:
            here = [m for m in measured if (m.rho_bar, m.c_bar) == (rho_bar, c_bar)]
            rows.append(
                {
                    "rho_bar": rho_bar,
                    "c_bar": c_bar,
                    "limit_to_v_pi": max(m.trained.limit_to_pi for m in here),
                    "limit_to_v_pi_tilde": max(m.trained.limit_to_pi_tilde for m in here),
                    "vtrace_to_v_pi": max(m.references.v_to_pi for m in here),
                    "vtrace_to_v_pi_tilde": max(m.references.v_to_pi_tilde for m in here),
                    "radius": max(m.trained.radius for m in here),
                    "bound": max(m.trained.bound for m in here),
                    "vtrace_radius": max(m.references.v_radius for m in here),
                    "lipschitz": max(m.trained.lipschitz for m in here),
                    "literal_radius": min(m.printed.literal_radius for m in here),
                    "seeds": [asdict(m) for m in here],
                }
            )
    return rows


def joint_checks(seeds: Sequence[int]) -> list[Check]:
    """Where V converges when J is trained too (α₂ = α₃, ρ̄ = c̄ = 1.05), for μ close to π and far from it."""
    rows: dict[float, list[tuple[float, float, float, float]]] = {0.0: [], 0.1: [], 0.3: [], 1.0: []}
    for _, problem in problems(seeds):
        if (problem.rho_bar, problem.c_bar) != (1.05, 1.05):
            continue
        for share, found in rows.items():
            mu = (1 - share) * problem.pi + share * problem.mu
            here = OffPolicy(problem.mdp, problem.pi, mu, problem.rho_bar, problem.c_bar)
            update = pair_map(with_policy_gradient(1.0), here)
            limit = split(update.fixed_point(), here)[1]
            value, tilde = here.mdp.state_values(here.pi), here.mdp.state_values(here.pi_tilde)
            found.append((distance(limit, value), distance(limit, tilde), distance(value, tilde), update.radius))
    means = {share: [sum(column) / len(found) for column in zip(*found, strict=True)] for share, found in rows.items()}
    return [
        identity(
            Statement(
                "dr-with-policy-gradient",
                "The fixed point is still V^π when J is followed beside L_Q, as the CASA recipe does",
                "α₂ E_μ[(T - Q) ∇Q] + α₃ E_μ[ρ τ (T - V) ∇log π] = 0, V = S => V = V^π",
                "extra",
            ),
            "largest |V* - V^π|, α₂ = α₃, ρ̄ = c̄ = 1.05, μ = 0.7 π + 0.3 of another policy; π held fixed",
            [found[0] for found in rows[0.3]],
            note="Mean |V* - V^π| and |V^π - V^π̃| by the share of another policy in μ: "
            + "; ".join(f"{share:g}: {mean[0]:.2g}, {mean[2]:.2g}" for share, mean in means.items())
            + ".",
            details={
                "columns": ["limit_to_v_pi", "limit_to_v_pi_tilde", "v_pi_to_v_pi_tilde", "radius"],
                "by_share_of_another_policy": {str(share): found for share, found in rows.items()},
            },
        )
    ]
