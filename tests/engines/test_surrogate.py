"""R2D2's family: V, Q and the surrogate policy from ε-greedy data, on a bandit whose values are known.

Gradients are exact expectations: a batch has every arm once, weighed by how often ε-greedy play pulls it.
"""

from dataclasses import replace

import pytest
import torch
from tests.support.small import small_config

from casa.heads import casa_head, dueling_head
from casa.learn.estimators import TARGETS, n_step_q
from casa.learn.objective import TrainedSteps, objective
from casa.targets import clipped_ratios

ARMS, TAU = 18, 0.1


def settle(epsilon, weights=(0.5, 1.0, 1.0), head=casa_head, best=0.2):
    """(V, E_π[r], Q) where the gradients vanish; the first arm brings `best`, the others nothing."""
    rewards = best * torch.eye(ARMS)[0]
    agent = small_config("r2d2-casa", **{"agent.weights": weights, "agent.value_rescale": False}).agent
    assert agent.tau == TAU
    advantage, value = torch.zeros(ARMS, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([advantage, value], lr=0.02, betas=(0.9, 0.9))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    always, never = torch.ones(1, ARMS, dtype=torch.bool), torch.zeros(1, ARMS, dtype=torch.bool)
    for _ in range(600):
        out = head(advantage, value[0], TAU)
        mu = torch.full((ARMS,), epsilon / ARMS)
        mu[out.q.argmax()] += 1 - epsilon
        arms = torch.arange(ARMS)[None]
        trained = TrainedSteps(arms, mu.log()[None], rewards[None], always, never, always, mu * ARMS)
        batch = out.map(lambda x: x.expand(2, ARMS, *x.shape))
        optimizer.zero_grad()
        objective(batch, batch.detach(), trained, agent).loss.backward()
        optimizer.step()
        schedule.step()
    out = head(advantage.detach(), value.detach()[0], TAU)
    return out.v.item(), (out.log_pi.exp() * rewards).sum().item(), out.q


@pytest.mark.parametrize("epsilon", [0.4, 0.1, 0.01])
@pytest.mark.parametrize("head", [casa_head, dueling_head])
def test_v_is_the_surrogates_mean_and_q_the_rewards(head, epsilon):
    """Of r2d2-v1's head too, where A + V alone would leave V free."""
    v, of_pi, q = settle(epsilon, (0.5, 1.0, 0.0), head)
    assert v == pytest.approx(of_pi, abs=0.005)
    torch.testing.assert_close(q, 0.2 * torch.eye(ARMS)[0], atol=0.01, rtol=0)


@pytest.mark.parametrize("epsilon", [0.4, 0.1, 0.01])
@pytest.mark.parametrize("best", [0.2, 0.1, 0.05])
def test_with_j_the_best_arm_is_known_and_the_others_seem_worse_than_they_are(epsilon, best):
    v, of_pi, q = settle(epsilon, best=best)
    assert v == pytest.approx(of_pi, abs=0.1)
    assert best <= q[0] < best + 0.07 and q[1:].max() < 0


def test_with_j_and_little_exploration_a_fifth_of_tau_is_too_small_a_difference():
    """A known limit: what is pulled first stays, because the others sink below what they bring."""
    assert settle(0.01, best=0.02)[2].argmax() != 0
    assert settle(0.01, (0.5, 1.0, 0.0), best=0.02)[2].argmax() == 0


def importance_weighted(s, agent):
    """What is not done: V^ = V + min(π/μ, 1)(Q^ - V), and the surrogate's gradient under the behaviour."""
    found = n_step_q(s, agent)
    return found._replace(v=s.now.v + clipped_ratios(s.log_rhos, 1.0) * (found.q - s.now.v), rhos=None)


def test_an_importance_weighted_v_is_far_away(monkeypatch):
    entry = replace(TARGETS["n-step-q"], function=importance_weighted)
    monkeypatch.setitem(TARGETS._entries, "n-step-q", entry)
    v, of_pi, _ = settle(0.01)
    assert v > of_pi + 0.1
