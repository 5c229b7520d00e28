"""Random sequences with several episodes in them, and the literal sums of the papers, written naively."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from casa.targets import dr_trace, gae, n_step_q, retrace, vtrace, vtrace_advantage
from casa.targets.types import Targets

GAMMA = 0.9


@dataclass
class Case:
    """One [T, B] batch: next_values[t] = values[t+1] inside an episode, its own at ends and at T-1."""

    rewards: Tensor
    discounts: Tensor
    values: Tensor
    next_values: Tensor
    q_taken: Tensor
    log_rhos: Tensor
    ends: Tensor

    def of(self, *names: str) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in names}

    def map(self, function: Callable[[Tensor], Tensor]) -> Case:
        return Case(*(function(getattr(self, field.name)) for field in fields(self)))

    def to(self, dtype: torch.dtype) -> Case:
        return self.map(lambda x: x if x.dtype == torch.bool else x.to(dtype))


def random_case(
    seed: int = 0, steps: int = 12, batch: int = 5, end_rate: float = 0.25, ratio_scale: float = 1.0
) -> Case:
    """fp64; each end is a termination or a truncation with equal chance."""
    g = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(steps, batch, generator=g, dtype=torch.float64)

    values = normal()
    ends = torch.rand(steps, batch, generator=g) < end_rate
    terminated = ends & (torch.rand(steps, batch, generator=g) < 0.5)
    following = torch.cat([values[1:], normal()[:1]])
    return Case(
        rewards=normal(),
        discounts=GAMMA * (~terminated).double(),
        values=values,
        next_values=torch.where(ends, normal(), following),
        q_taken=normal(),
        log_rhos=ratio_scale * normal(),
        ends=ends,
    )


def episodes_case() -> Case:
    """One environment, T = 9: a termination at 2, a truncation at 5, an episode cut by the sequence at 8."""
    case = random_case(seed=7, steps=9, batch=1, end_rate=0.0)
    case.ends[2], case.ends[5] = True, True
    case.discounts[2] = 0.0
    case.next_values[2], case.next_values[5] = 100.0, -3.0  # a terminal state's value must not count
    return case


def naive(terms: Callable[[int, int], Iterator[float]], like: Tensor) -> Tensor:
    """Element by element, the sum of what `terms(t, b)` yields."""
    result = torch.zeros_like(like)
    for t in range(like.shape[0]):
        for b in range(like.shape[1]):
            result[t, b] = sum(terms(t, b))
    return result


def final_step(case: Case, t: int, b: int) -> int:
    """The last step of t's episode inside the sequence: the first end at or after t, or T-1."""
    for s in range(t, case.ends.shape[0]):
        if case.ends[s, b]:
            return s
    return case.ends.shape[0] - 1


def product(x: Tensor, b: int, first: int, last: int) -> float:
    """x[first] · … · x[last], both included; 1 when there is nothing in between."""
    return math.prod(x[i, b].item() for i in range(first, last + 1))


def literal_gae(case: Case, lam: float) -> Tensor:
    """V_t + Σ_k γᵏ λᵏ δ_{t+k}."""

    def terms(t: int, b: int) -> Iterator[float]:
        yield case.values[t, b].item()
        for s in range(t, final_step(case, t, b) + 1):
            delta = case.rewards[s, b] + case.discounts[s, b] * case.next_values[s, b] - case.values[s, b]
            yield product(case.discounts, b, t, s - 1) * lam ** (s - t) * delta.item()

    return naive(terms, case.rewards)


def literal_vtrace(case: Case, rho_bar: float, c_bar: float) -> Tensor:
    """V_t + Σ_k γᵏ c_[t:t+k-1] ρ_{t+k} δ^V_{t+k}."""
    rho, c = case.log_rhos.exp().clamp(max=rho_bar), case.log_rhos.exp().clamp(max=c_bar)

    def terms(t: int, b: int) -> Iterator[float]:
        yield case.values[t, b].item()
        for s in range(t, final_step(case, t, b) + 1):
            delta = case.rewards[s, b] + case.discounts[s, b] * case.next_values[s, b] - case.values[s, b]
            yield product(case.discounts, b, t, s - 1) * product(c, b, t, s - 1) * (rho[s, b] * delta).item()

    return naive(terms, case.rewards)


def literal_retrace(case: Case, c_bar: float) -> Tensor:
    """Q_t + Σ_k γᵏ c_[t+1:t+k] δ^Q_{t+k}, δ^Q_t = r_t + γ E_π Q(s_{t+1}, ·) - Q_t."""
    c = case.log_rhos.exp().clamp(max=c_bar)

    def terms(t: int, b: int) -> Iterator[float]:
        yield case.q_taken[t, b].item()
        for s in range(t, final_step(case, t, b) + 1):
            delta = case.rewards[s, b] + case.discounts[s, b] * case.next_values[s, b] - case.q_taken[s, b]
            yield product(case.discounts, b, t, s - 1) * product(c, b, t + 1, s) * delta.item()

    return naive(terms, case.rewards)


def literal_dr_trace(case: Case, rho_bar: float, c_bar: float) -> Targets:
    """V_t + Σ_k γᵏ c_[t:t+k-1] ρ_{t+k} δ_{t+k} and

    Q_t + Σ_k γᵏ c_[t+1:t+k-1] (1 if k = 0, else ρ_{t+k}) δ_{t+k}.
    """
    rho, c = case.log_rhos.exp().clamp(max=rho_bar), case.log_rhos.exp().clamp(max=c_bar)
    delta = case.rewards + case.discounts * case.next_values - case.q_taken

    def v_terms(t: int, b: int) -> Iterator[float]:
        yield case.values[t, b].item()
        for s in range(t, final_step(case, t, b) + 1):
            weight = product(case.discounts, b, t, s - 1) * product(c, b, t, s - 1)
            yield weight * (rho[s, b] * delta[s, b]).item()

    def q_terms(t: int, b: int) -> Iterator[float]:
        yield case.q_taken[t, b].item()
        for s in range(t, final_step(case, t, b) + 1):
            weight = product(case.discounts, b, t, s - 1) * product(c, b, t + 1, s - 1)
            yield weight * (1.0 if s == t else rho[s, b].item()) * delta[s, b].item()

    return Targets(naive(v_terms, case.rewards), naive(q_terms, case.rewards))


def literal_n_step(case: Case, n: int, h: Callable[[float], float], h_inverse: Callable[[float], float]) -> Tensor:
    """h(Σ_{i<m} γⁱ r_{t+i} + γᵐ h⁻¹(next_values[t+m-1])), m = n or what is left of the episode."""

    def terms(t: int, b: int) -> Iterator[float]:
        last = min(t + n - 1, final_step(case, t, b))
        total = sum(product(case.discounts, b, t, s - 1) * case.rewards[s, b].item() for s in range(t, last + 1))
        yield h(total + product(case.discounts, b, t, last) * h_inverse(case.next_values[last, b].item()))

    return naive(terms, case.rewards)


def advantage_of(case: Case) -> Tensor:
    """The V-Trace advantage with the V-Trace target."""
    arguments = case.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends")
    return vtrace_advantage(**arguments, v_targets=vtrace(**arguments))


# Every estimator as (what it returns, as one tensor) of a case: what the properties in common are tested on.
ESTIMATORS: dict[str, Callable[[Case], Tensor]] = {
    "gae": lambda x: gae(**x.of("rewards", "discounts", "values", "next_values", "ends"), lam=0.8).v,
    "vtrace": lambda x: vtrace(**x.of("rewards", "discounts", "values", "next_values", "log_rhos", "ends")),
    "vtrace_advantage": advantage_of,
    "retrace": lambda x: retrace(**x.of("rewards", "discounts", "q_taken", "next_values", "log_rhos", "ends")),
    "dr_trace.v": lambda x: dr_trace(**x.of(*(f.name for f in fields(x)))).v,
    "dr_trace.q": lambda x: dr_trace(**x.of(*(f.name for f in fields(x)))).q,
    "n_step_q": lambda x: n_step_q(**x.of("rewards", "discounts", "next_values", "ends"), n=3),
    "n_step_q.plain": lambda x: n_step_q(**x.of("rewards", "discounts", "next_values", "ends"), n=3, rescale=False),
}
