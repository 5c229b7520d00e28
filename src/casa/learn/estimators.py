"""The table of targets: from the network outputs along a sequence to V^, Q^ and the policy gradient's advantage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from casa import tables
from casa import targets as T
from casa.config.fields import AgentConfig
from casa.heads import CategoricalOutput, HeadOutput
from casa.targets.categorical import atoms


class Steps(NamedTuple):
    """Input of an estimator: T transitions [T, B], and the outputs at sₜ (`now`) and sₜ₊₁ (`after`), all detached.

    `discounts` = γ (1 - terminated); `ends` = terminated, truncated or no transition; `log_rhos` = log π - log μ of the
    taken action; `q` = Q of the taken action, None for heads without Q; `after_target` is the target network's output
    at sₜ₊₁, None if there is no target network.
    """

    rewards: Tensor
    discounts: Tensor
    ends: Tensor
    log_rhos: Tensor
    now: HeadOutput
    after: HeadOutput
    q: Tensor | None
    after_target: HeadOutput | None


class Estimate(NamedTuple):
    """V^, Q^ of the taken action, the policy gradient's advantage Ψ, and its clipped ratio ρ (None: 1), all [T, B].

    `z` [T, B, N]: the distribution whose mean is Q^, for heads with atoms; None: Q learns from Q^ itself.
    """

    v: Tensor
    q: Tensor
    advantage: Tensor
    rhos: Tensor | None
    z: Tensor | None = None


@dataclass(frozen=True)
class Estimator:
    """`function(steps, agent)` -> Estimate; its requirements, and its `label` in `casa recipes`."""

    function: Callable[[Steps, AgentConfig], Estimate]
    label: str
    needs_q: bool = False
    needs_target_network: bool = False
    has_traces: bool = False
    """Whether `Steps.log_rhos` = -inf ends the returns of earlier steps there: they bootstrap from V."""
    needs_atoms: bool = False
    """Whether the head must have a distribution on atoms."""

    def __call__(self, steps: Steps, agent: AgentConfig) -> Estimate:
        """V^, Q^, Ψ and ρ."""
        return self.function(steps, agent)


def gae(s: Steps, agent: AgentConfig) -> Estimate:
    """GAE(λ) for V^ and Q^; Ψ = Q^ - V."""
    v, q = T.gae(s.rewards, s.discounts, s.now.v, s.after.v, s.ends, agent.lam)
    return Estimate(v, q, q - s.now.v, None)


def vtrace(s: Steps, agent: AgentConfig) -> Estimate:
    """V-Trace for V^; Ψ = r + γ V^(sₜ₊₁) - V, weighted by ρ."""
    v = T.vtrace(
        s.rewards, s.discounts, s.now.v, s.after.v, s.log_rhos, s.ends, rho_bar=agent.rho_bar, c_bar=agent.c_bar
    )
    q = T.one_step(s.rewards, s.discounts, v, s.after.v, s.ends)
    return Estimate(v, q, q - s.now.v, T.clipped_ratios(s.log_rhos, agent.rho_bar))


def vtrace_retrace(s: Steps, agent: AgentConfig) -> Estimate:
    """V-Trace for V^ and Ψ, ReTrace for Q^."""
    assert s.q is not None
    base = vtrace(s, agent)
    q = T.retrace(s.rewards, s.discounts, s.q, s.after.mean_q(), s.log_rhos, s.ends, c_bar=agent.c_bar)
    return base._replace(q=q)


def dr_trace(s: Steps, agent: AgentConfig) -> Estimate:
    """DR-Trace for V^ and Q^; Ψ = Q^ - V, weighted by ρ."""
    assert s.q is not None
    v, q = T.dr_trace(
        s.rewards, s.discounts, s.now.v, s.after.v, s.q, s.log_rhos, s.ends, rho_bar=agent.rho_bar, c_bar=agent.c_bar
    )
    return Estimate(v, q, q - s.now.v, T.clipped_ratios(s.log_rhos, agent.rho_bar))


def n_step_q(s: Steps, agent: AgentConfig) -> Estimate:
    """n-step double Q for Q^; V^ = E_π[Q] + Q^ - Q(sₜ, aₜ); Ψ = Q^ - V, weighted by min(π/μ, 1).

    V^ has the mean E_π[Q^] where Q = Q^. It is not weighted by π/μ: ε-greedy data is far from the surrogate π, so V
    would learn from only a few percent of the steps.
    """
    assert s.after_target is not None
    return _n_step(s, agent, s.after_target.q_of(s.after.argmax_q()))


def n_step_expected_q(s: Steps, agent: AgentConfig) -> Estimate:
    """`n_step_q` that bootstraps from E_π[Q_target] with the online network's π, not from the maximum.

    With continuous actions of D dimensions, the maximum adds up the D errors that happen to be largest; V then grows
    without bound (docs/continuous.md).
    """
    assert s.after_target is not None
    return _n_step(s, agent, s.after.mean_q_of(s.after_target))


def _n_step(s: Steps, agent: AgentConfig, bootstrap: Tensor) -> Estimate:
    return _of_q(s, T.n_step_q(s.rewards, s.discounts, bootstrap, s.ends, agent.n_step, rescale=agent.value_rescale))


def _of_q(s: Steps, q: Tensor) -> Estimate:
    assert s.q is not None
    return Estimate(s.now.mean_q() + q - s.q, q, q - s.now.v, T.clipped_ratios(s.log_rhos, 1.0))


def n_step_categorical(s: Steps, agent: AgentConfig) -> Estimate:
    """n-step double Q for the distribution Z^ on the head's atoms; Q^ is its mean, V^ and Ψ as in `n_step_q`."""
    assert isinstance(s.after_target, CategoricalOutput)
    following = s.after_target.log_p_of(s.after.argmax_q()).exp()
    z = T.n_step_categorical(
        s.rewards, s.discounts, following, s.ends, agent.n_step, agent.support, rescale=agent.value_rescale
    )
    return _of_q(s, (z * atoms(agent.support, z.shape[-1], z)).sum(-1))._replace(z=z)


TARGETS: tables.Table[Estimator] = tables.TARGETS
for _name, _estimator in {
    "gae": Estimator(gae, "GAE"),
    "vtrace": Estimator(vtrace, "V-Trace", has_traces=True),
    "vtrace+retrace": Estimator(vtrace_retrace, "V/ReTrace", needs_q=True, has_traces=True),
    "dr-trace": Estimator(dr_trace, "DR-Trace", needs_q=True, has_traces=True),
    "n-step-q": Estimator(n_step_q, "n-step Q", needs_q=True, needs_target_network=True),
    "n-step-expected-q": Estimator(n_step_expected_q, "n-step E[Q]", needs_q=True, needs_target_network=True),
    "n-step-categorical": Estimator(
        n_step_categorical, "n-step Z", needs_q=True, needs_target_network=True, needs_atoms=True
    ),
}.items():
    TARGETS.add(_name, _estimator, __name__)
