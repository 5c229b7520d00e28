"""The gradient statements fail as soon as the head they are about is broken."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from casa import heads
from casa.heads import HEADS, HeadOutput
from casa.theory import continuous, densities, settling
from casa.theory.check import Verdict
from casa.theory.compatible import linear_agent, stationary_point
from casa.theory.continuous import continuous_checks, gauss_legendre, kernel_advantage, log_density, simpson
from casa.theory.densities import density_checks
from casa.theory.entropy import directions, entropy_checks, greedy_checks
from casa.theory.gradients import action_gradients, chi_checks, gradient_checks, misfit, settings
from casa.theory.network import chi, cosines, jacobian, relative_error


def verdicts(checks):
    return {check.statement.key: check.verdict for check in checks}


def test_casa_gradient_is_tau_times_the_score():
    for setting in settings([0], (0.1, 3.0)):
        grad_q, grad_log_pi = action_gradients(setting, setting.head("casa"))
        assert relative_error(grad_q, setting.tau * grad_log_pi) < 1e-12
        assert misfit(grad_q, grad_log_pi) < 1e-7


@pytest.mark.parametrize("broken", ["type1", "type2", "type3", "type4"])
def test_a_head_without_one_stop_gradient_is_found_out(monkeypatch, broken):
    monkeypatch.setitem(HEADS._entries, "casa", HEADS[broken])
    assert verdicts(gradient_checks([0]))["casa-gradient"] is Verdict.FAILS
    assert verdicts(chi_checks([0]))["chi-casa"] is Verdict.FAILS


def test_entropy_statements_need_the_centred_head(monkeypatch):
    monkeypatch.setitem(HEADS._entries, "casa", HEADS["type3"])
    found = verdicts(entropy_checks([0]))
    assert found["entropy-bonus"] is Verdict.FAILS
    # Uncentred, Q - V = A: the lemma does not mind, because a baseline has no policy gradient.
    assert found["entropy-lemma"] is Verdict.HOLDS


def test_a_policy_gradient_without_the_factor_tau_is_found_out(monkeypatch):
    from casa.theory import entropy

    original = entropy.policy_loss
    monkeypatch.setattr(entropy, "policy_loss", lambda log_pi, adv, tau, **kw: original(log_pi, adv, 1.0, **kw))
    assert verdicts(entropy_checks([0]))["entropy-bonus"] is Verdict.FAILS


@pytest.mark.parametrize("name", densities.DENSITIES)
def test_a_density_without_its_normaliser_is_found_out(monkeypatch, name):
    """E_π[∇log π] = 0 says that the density stays normalised."""
    density = densities.DENSITIES[name]
    broken = density._replace(log_pi=lambda p, x: density.log_pi(p, x) + 0.1 * p.log_std[..., :1])
    monkeypatch.setitem(densities.DENSITIES, name, broken)
    assert verdicts(density_checks([0]))["density-gradient"] is Verdict.FAILS


@pytest.mark.parametrize("broken", ["v", "q"])
def test_a_gaussian_head_without_its_stop_gradient_or_entropy_is_found_out(monkeypatch, broken):
    original = densities.casa_gaussian_head

    def head(mean, log_std, value, tau):
        out = original(mean, log_std, value, tau)
        shift = out.v if broken == "v" else out.entropy()
        return dataclasses.replace(out, q=out.q + torch.stack((shift - shift.detach(), torch.zeros_like(shift)), -1))

    monkeypatch.setattr(densities, "casa_gaussian_head", head)
    assert verdicts(density_checks([0])) == {"density-gradient": Verdict.HOLDS, "gaussian-head": Verdict.FAILS}


def test_greedy_limit_needs_the_temperature(monkeypatch):
    from casa.theory import entropy

    monkeypatch.setattr(entropy, "log_softmax", lambda logits, tau: heads.log_softmax(logits, 3 * tau))
    assert verdicts(greedy_checks([0]))["greedy-limit"] is Verdict.FAILS


def test_jacobian_against_one_backward_for_each_output():
    (setting,) = settings([1], (1.0,))
    log_pi = setting.head("casa").log_pi
    found = jacobian(log_pi, setting.parameters)
    grads = torch.autograd.grad(log_pi[2, 1], setting.parameters, retain_graph=True, allow_unused=True)
    flat = [
        torch.zeros_like(p).flatten() if g is None else g.flatten()
        for g, p in zip(grads, setting.parameters, strict=True)
    ]
    torch.testing.assert_close(found[2, 1], torch.cat(flat))


def test_chi_of_known_vectors():
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    y = torch.tensor([[[3.0, 0.0], [4.0, 0.0]]])
    assert chi(x, y, torch.tensor([[0.25, 0.75]])) == pytest.approx(0.25)
    assert float(cosines(torch.zeros(2), torch.ones(2))) == 0.0
    assert misfit(-x[:, :1], y[:, :1]) == pytest.approx(1.0)


def test_twice_the_true_advantage_turns_l_q_against_j():
    (setting,) = settings([0], (1.0,))
    v, q, _ = setting.head("casa")
    targets = v.detach().unsqueeze(-1) + 0.5 * (q - v.unsqueeze(-1)).detach()
    ascent = directions(setting, targets)
    torch.testing.assert_close(ascent.q, -ascent.policy)


def test_compatible_theorem_needs_both_conditions():
    agent = linear_agent(0, tau=1.0)
    theta = stationary_point(agent.evaluation, agent.zeros())
    assert theta is not None
    exact = agent.policy_gradient(theta)
    torch.testing.assert_close(agent.compatible_gradient(theta), exact, rtol=1e-8, atol=1e-10)
    assert exact.norm() > 0.1
    assert (agent.compatible_gradient(theta + 0.3) - agent.policy_gradient(theta + 0.3)).norm() > 0.1
    other = dataclasses.replace(agent, head_name="type1")
    theta = stationary_point(other.evaluation, other.zeros())
    assert theta is not None
    assert (other.compatible_gradient(theta) - other.policy_gradient(theta)).norm() > 0.1


def test_stationary_point_of_a_known_field():
    root = torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = stationary_point(lambda x: root**3 - x**3, torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(found, root)
    assert stationary_point(lambda x: 1 + x.square(), torch.ones(2, dtype=torch.float64)) is None


@pytest.mark.parametrize(("q_weight", "policy_weight"), [(1.0, 0.0), (10.0, 10.0), (2.0, 1.0)])
def test_advantage_settles_at_a_multiple_of_the_truth(q_weight, policy_weight):
    rewards = torch.tensor([[0.1, 0.9, 0.4], [1.0, 0.2, 0.6]], dtype=torch.float64)
    weights = torch.full((2,), q_weight).double(), torch.full((2,), policy_weight).double()
    settled = settling.train_bandit(rewards, *weights, tau=0.8, steps=1000)
    factor = 1 + policy_weight / q_weight
    torch.testing.assert_close(settled.advantage, factor * settled.truth)
    pi = (factor * rewards / 0.8).softmax(-1)
    torch.testing.assert_close(settled.truth, rewards - (pi * rewards).sum(-1, keepdim=True))


def test_policy_gradient_alone_collapses():
    rewards = torch.tensor([[0.1, 0.9, 0.4]], dtype=torch.float64)
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    early, late = (settling.train_bandit(rewards, zero, one, steps=steps).entropy for steps in (50, 800))
    assert late < 0.2 * early


@pytest.mark.parametrize("rule", [gauss_legendre(40), simpson(1000)])
def test_quadratures(rule):
    assert float((rule.weights * rule.nodes.exp()).sum()) == pytest.approx(2.3504023872876028, abs=1e-10)
    basis = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    density = log_density(basis, rule.nodes, 0.5, gauss_legendre(40)).exp()
    assert float((rule.weights * density).sum()) == pytest.approx(1.0, abs=1e-9)


def test_kernel_advantage_interpolates():
    constant = kernel_advantage(torch.full((1, 5), 3.0).double(), torch.linspace(-1, 1, 7).double())
    torch.testing.assert_close(constant, torch.full((1, 7), 3.0).double())
    narrow = kernel_advantage(torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.tensor([0.0]).double(), width=0.05)
    assert float(narrow) == pytest.approx(2.0)


def test_continuous_identity_needs_the_stop_gradient(monkeypatch):
    assert verdicts(continuous_checks([0]))["continuous-gradient"] is Verdict.HOLDS

    def without_stop(basis, value, actions, tau, rule):
        mass = rule.weights * log_density(basis, rule.nodes, tau, rule).exp()
        mean = (mass * kernel_advantage(basis, rule.nodes)).sum(-1, keepdim=True)
        return kernel_advantage(basis, actions) - mean + value.detach().unsqueeze(-1)

    monkeypatch.setattr(continuous, "action_value", without_stop)
    found = verdicts(continuous_checks([0]))
    assert found["continuous-gradient"] is Verdict.FAILS
    assert found["continuous-chi"] is Verdict.FAILS


@pytest.mark.parametrize(("broken", "fails"), [("type1", {"hat-gradient", "hat-chi"}), ("type3", {"hat-integrals"})])
def test_hats_need_the_casa_head(monkeypatch, broken, fails):
    from casa.theory import hats

    assert set(verdicts(hats.hat_checks([0])).values()) == {Verdict.HOLDS}
    monkeypatch.setattr(hats, "casa_head", getattr(heads, f"{broken}_head"))
    found = verdicts(hats.hat_checks([0]))
    assert fails <= {key for key, verdict in found.items() if verdict is Verdict.FAILS}


def test_an_exact_multiple_has_chi_one_though_not_equal_gradients():
    (setting,) = settings([0], (1.0,))
    v, q, log_pi = setting.head("casa")
    grad_q, grad_log_pi = action_gradients(setting, HeadOutput(v, 3.0 * q, log_pi))
    assert chi(grad_q, grad_log_pi, log_pi.exp().detach()) == pytest.approx(1.0, abs=1e-12)
    assert relative_error(grad_q, grad_log_pi) > 1
