"""Measurements of the trace operators on one off-policy problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casa.theory.affine import Affine, action_map, affine, centred_map, join, pair_map, split, value_map
from casa.theory.mdp import random_mdp, random_policy, seeded
from casa.theory.operators import (
    OffPolicy,
    centred,
    centred_value,
    dr_action,
    dr_value,
    fitted_to_behaviour,
    gradient_step,
    literal,
    rate_bound,
    retrace,
    scaled,
    tied,
    v_trace,
    with_old_baseline,
)

RHO_BARS = (0.3, 1.0, 1.05, 1e9)
C_BARS = (0.3, 1.0, 1.05, 1e9)
DISCOUNT = 0.9
EVERYWHERE = "random MDPs, ρ̄ and c̄ in {0.3, 1, 1.05, 1e9}"
DOUBLINGS = 14  # 16,384 iterations


@dataclass(frozen=True)
class References:
    """V-Trace and ReTrace on the same problem: rates, and distances of their fixed points (sup norm)."""

    v_radius: float
    v_lipschitz: float
    v_bound: float
    v_to_pi_tilde: float
    v_to_pi: float
    retrace_lipschitz: float
    retrace_to_pi: float


@dataclass(frozen=True)
class AsTrained:
    """DR-Trace with Q centred under π, iterated: its limit and its rates (sup norm)."""

    limit_to_pi: float
    limit_to_pi_tilde: float
    limit_q_to_pi: float
    pi_to_pi_tilde: float
    radius: float
    lipschitz: float
    weighted_lipschitz: float
    bound: float
    short_horizon_radius: float
    behaviour_radius: float
    behaviour_to_pi: float
    small_step_abscissa: float
    multiple_error: float


@dataclass(frozen=True)
class AsPrinted:
    """The paper's operators and lemmas as they are written (sup norm)."""

    literal_radius: float
    centring_defect: float
    literal_to_pi: float
    residual_at_pi_tilde: float
    free_directions: int
    any_value_residual: float
    tied_lipschitz: float
    tied_bound: float
    tied_to_pi: float
    value_matrix_difference: float
    advantage_shift: float


@dataclass(frozen=True)
class Measured:
    """All numbers of one problem."""

    seed: int
    rho_bar: float
    c_bar: float
    references: References
    trained: AsTrained
    printed: AsPrinted


def problems(seeds: Sequence[int], discount: float = DISCOUNT) -> Iterator[tuple[int, OffPolicy]]:
    """Random MDPs with random π and μ, one for each seed, at every (ρ̄, c̄)."""
    for seed in seeds:
        generator = seeded(seed, purpose=9)
        mdp = random_mdp(generator, discount=discount)
        pi = random_policy(generator, mdp.num_states, mdp.num_actions)
        mu = random_policy(generator, mdp.num_states, mdp.num_actions)
        for rho_bar in RHO_BARS:
            for c_bar in C_BARS:
                yield seed, OffPolicy(mdp, pi, mu, rho_bar, c_bar)


def measure(seed: int, problem: OffPolicy) -> Measured:
    """All numbers of one problem; the start of the iteration is drawn from `seed`."""
    generator = seeded(seed, purpose=10)
    v = torch.randn(problem.mdp.num_states, generator=generator, dtype=torch.float64)
    q = torch.randn(problem.pi.shape, generator=generator, dtype=torch.float64)
    q = q - problem.mean(q).unsqueeze(-1) + v.unsqueeze(-1)
    return Measured(
        seed,
        problem.rho_bar,
        problem.c_bar,
        references(problem),
        as_trained(problem, q, v),
        as_printed(problem, q, v),
    )


def references(problem: OffPolicy) -> References:
    """V-Trace and ReTrace: their limits are known, so they validate the checks."""
    mdp = problem.mdp
    value, action = value_map(v_trace, problem), action_map(retrace, problem)
    limit = value.fixed_point()
    return References(
        v_radius=value.radius,
        v_lipschitz=value.lipschitz,
        v_bound=float(1 - (1 - mdp.discount) * problem.mass.min()),
        v_to_pi_tilde=distance(limit, mdp.state_values(problem.pi_tilde)),
        v_to_pi=distance(limit, mdp.state_values(problem.pi)),
        retrace_lipschitz=action.lipschitz,
        retrace_to_pi=distance(action.fixed_point(), mdp.action_values(problem.pi).flatten()),
    )


def as_trained(problem: OffPolicy, q: Tensor, v: Tensor) -> AsTrained:
    """Iterate the update with centred Q from (q, v), and variants that model training in other ways."""
    mdp, pi, mu = problem.mdp, problem.pi, problem.mu
    value, value_tilde = mdp.state_values(pi), mdp.state_values(problem.pi_tilde)
    update, values = pair_map(centred, problem), value_map(centred_value, problem)
    limit_q, limit_v = split(update.iterated(join(q, v), DOUBLINGS), problem)
    behaviour = pair_map(fitted_to_behaviour, problem)
    short = [OffPolicy(mdp, pi, mu, problem.rho_bar, problem.c_bar, horizon) for horizon in (1, 2, 5)]
    return AsTrained(
        limit_to_pi=distance(limit_v, value),
        limit_to_pi_tilde=distance(limit_v, value_tilde),
        limit_q_to_pi=distance(limit_q, mdp.action_values(pi)),
        pi_to_pi_tilde=distance(value, value_tilde),
        radius=values.radius,
        lipschitz=centred_map(centred, problem).lipschitz,
        weighted_lipschitz=weighted_lipschitz(problem, values),
        bound=rate_bound(problem),
        short_horizon_radius=max(pair_map(centred, cut).radius for cut in short),
        behaviour_radius=behaviour.radius,
        behaviour_to_pi=distance(split(behaviour.fixed_point(), problem)[1], value),
        small_step_abscissa=max(
            pair_map(gradient_step(*weights), problem).abscissa for weights in ((0.5, 1.0), (1.0, 10.0))
        ),
        multiple_error=max(_multiple_error(problem, factor) for factor in (0.0, 0.5, 2.0)),
    )


def weighted_lipschitz(problem: OffPolicy, values: Affine) -> float:
    """The Lipschitz constant in the norm max_s |((I - γ P_c) V)(s)| / x(s), with x = (I - γ P_c) 1."""
    matrix = torch.linalg.solve(problem.traces, values.matrix @ problem.traces)
    scale = torch.linalg.inv(problem.traces).sum(-1)
    return float(((matrix.abs() @ scale) / scale).max())


def _multiple_error(problem: OffPolicy, factor: float) -> float:
    """Distance of the fixed point with Ā = k A to the value of the signed mixture (1 - k) π̃ + k π."""
    mixture = (1 - factor) * problem.pi_tilde + factor * problem.pi
    found = split(pair_map(scaled(factor), problem).fixed_point(), problem)[1]
    return distance(found, problem.mdp.state_values(mixture))


def as_printed(problem: OffPolicy, q: Tensor, v: Tensor) -> AsPrinted:
    """Theorem 4 with its lemmas: the operator U, the two halves of its proof, and the fixed point that it claims."""
    mdp = problem.mdp
    u = pair_map(literal, problem)
    next_q, next_v = literal(problem, q, v)
    value_tilde = mdp.state_values(problem.pi_tilde)
    pair_tilde = join(mdp.backup(value_tilde), value_tilde)
    baseline = pair_map(with_old_baseline, problem)
    eigenvalues = torch.linalg.eigvals(baseline.matrix)
    any_value = join(mdp.backup(v), v)  # δ^DR is 0 for every V if Q is the backup of V
    tied_map = action_map(tied, problem)
    advantage = q - v.unsqueeze(-1)
    fixed_advantage = value_map(lambda p, x: dr_value(p, advantage + x.unsqueeze(-1), x), problem)
    return AsPrinted(
        literal_radius=u.radius,
        centring_defect=distance(problem.mean(next_q), next_v),
        literal_to_pi=distance(split(u.fixed_point(), problem)[1], mdp.state_values(problem.pi)),
        residual_at_pi_tilde=distance(u.matrix @ pair_tilde + u.offset, pair_tilde),
        free_directions=int((eigenvalues - 1).abs().lt(1e-6).sum()),
        any_value_residual=distance(baseline.matrix @ any_value + baseline.offset, any_value),
        tied_lipschitz=tied_map.lipschitz,
        tied_bound=lemma_bound(problem),
        tied_to_pi=distance(tied_map.fixed_point(), mdp.action_values(problem.pi).flatten()),
        value_matrix_difference=distance(fixed_advantage.matrix, value_map(v_trace, problem).matrix),
        advantage_shift=distance(_settled_advantage(problem, v), _settled_advantage(problem, v.flip(0))),
    )


def lemma_bound(problem: OffPolicy) -> float:
    """C = max 1 - (1 - γ) E_μ[Σ_k γ^k c_{[t+1:t+k-1]} ρ̃_{t,k}] = max 1 - (1 - γ)(1 + γ P K α) (lemma E.3)."""
    mdp = problem.mdp
    later = mdp.discount * mdp.transitions @ (problem.traces @ problem.mass)
    return float((1 - (1 - mdp.discount) * (1 + later)).max())


def _settled_advantage(problem: OffPolicy, v: Tensor) -> Tensor:
    """A* of lemma E.3: the fixed point of the centred T(Q) while V is held at `v`."""
    shape = problem.pi.shape

    def function(x: Tensor) -> Tensor:
        target = dr_action(problem, x.view(shape) + v.unsqueeze(-1), v)
        return (target - problem.mean(target).unsqueeze(-1)).flatten()

    held: Affine = affine(function, problem.pi.numel())
    return held.fixed_point()


def distance(x: Tensor, y: Tensor) -> float:
    """max |x - y|; not finite if x or y is not."""
    return float((x - y).abs().max())
