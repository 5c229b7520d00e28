"""A learner step on a distribution of returns, with noisy outputs: gradients, priorities, and the noise."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.learner_cases import ACTIONS, make_learner, random_batch, same, weights_of
from tests.support.small import small_config
from tests.support.target_cases import product

from casa.heads import categorical_head
from casa.learn.learner import Learner
from casa.learn.objective import TrainedSteps, objective
from casa.targets.categorical import atoms, project

LENGTH, SIZE, ATOMS = 7, 5, 11
SUPPORT = (-3.0, 4.0)
CHANGES = {"agent.atoms": ATOMS, "agent.support": SUPPORT}


def outputs(seed, **more):
    """Logits with gradients, and the head's output."""
    g = torch.Generator().manual_seed(seed)
    raw = {
        name: torch.randn(LENGTH + 1, SIZE, *shape, generator=g, dtype=torch.float64).requires_grad_()
        for name, shape in {"advantage_atoms": (ACTIONS, ATOMS), "value_atoms": (ATOMS,)}.items()
    }
    return raw, categorical_head(**raw, tau=0.1, support=SUPPORT)


def trained_steps(batch, weights):
    facts = {name: x for name, x in batch._asdict().items() if name in TrainedSteps._fields}
    return TrainedSteps(**facts, weights=weights)


def literal_targets(batch, out, target, n, gamma):
    """Z^ of each transition: loops over n-step returns, argmax by the online network, p of the target network."""
    found = torch.zeros(LENGTH, SIZE, ATOMS, dtype=torch.float64)
    z = atoms(SUPPORT, ATOMS, found)
    ends = batch.terminated | batch.truncated
    discounts = gamma * (~batch.terminated).double()
    rewards = batch.rewards.double().clamp(-1, 1)
    for b in range(SIZE):
        for t in range(LENGTH):
            last = t
            while last < min(t + n, LENGTH) - 1 and not ends[last, b] and batch.valid[last, b]:
                last += 1
            total = sum(product(discounts, b, t, s - 1) * rewards[s, b] for s in range(t, last + 1))
            best = out.q[last + 1, b].argmax()
            p = target.log_p[last + 1, b, best].exp()
            found[t, b] = project(total + product(discounts, b, t, last) * z, p, SUPPORT, ATOMS)
    return found


@pytest.mark.parametrize("n", [1, 3])
def test_the_gradient_is_that_of_the_cross_entropy(n):
    """∂loss/∂logits = E[w (p - Z^)], split by the dueling sum; none flows into targets, later states, other actions."""
    batch, weights = random_batch(LENGTH, SIZE, seed=2, ends=0.3), torch.rand(SIZE, dtype=torch.float64)
    (raw, out), (raw_target, target) = outputs(1), outputs(2)
    agent = small_config("rainbow", **CHANGES, **{"agent.n_step": n, "agent.reward": "clip"}).agent
    result = objective(out, target, trained_steps(batch, weights), agent)
    grads = torch.autograd.grad(result.loss, [*raw.values(), *raw_target.values()], allow_unused=True)
    z = literal_targets(batch, out, target, n, agent.discount)
    valid = batch.valid
    torch.testing.assert_close(result.estimate.z[valid], z[valid], rtol=1e-5, atol=1e-6)
    p = out.log_p_of(torch.cat((batch.actions, batch.actions[:1]))).exp().detach()[:-1]
    slope = (weights * valid / valid.sum())[..., None] * (p - z)
    taken = torch.nn.functional.one_hot(batch.actions, ACTIONS)[..., None].double()
    expected = (slope[:, :, None] * (taken - 1 / ACTIONS), slope)
    for found, exact in zip(grads[:2], expected, strict=True):
        torch.testing.assert_close(found[:-1], exact, rtol=1e-4, atol=1e-7)
        assert not found[-1].any()
    assert grads[2:] == (None, None)
    mean = (z * atoms(SUPPORT, ATOMS, z)).sum(-1)
    torch.testing.assert_close(result.estimate.q[valid], mean[valid], rtol=1e-5, atol=1e-5)


def test_the_priority_is_the_divergence():
    """η max + (1 - η) mean of KL(Z^ ‖ p) over the valid transitions of a sequence."""
    silent = {"net.noise": 0.0, "agent.behaviour": "epsilon-greedy"}
    learner = make_learner("rainbow", **silent, **{"agent.reward": "clip", "data.eta": 0.7})
    batch = random_batch(LENGTH, SIZE, seed=4, ends=0.3)
    with torch.no_grad():
        out, target = learner.outputs(batch)
        z = objective(out, target, learner.trained_steps(batch, torch.ones(SIZE)), learner.agent).estimate.z
        log_p = out.map(lambda x: x[:-1]).log_p_of(batch.actions)
    found = learner.step(batch, torch.ones(SIZE), 0.0).priorities
    for b in range(SIZE):
        errors = [
            sum(float(x * (x.log() - y)) for x, y in zip(z[t, b], log_p[t, b], strict=True) if x > 0)
            for t in range(LENGTH)
            if batch.valid[t, b]
        ]
        assert found[b] == pytest.approx(0.7 * max(errors) + 0.3 * np.mean(errors), rel=1e-3)


def noises(learner, steps):
    """The noise of each of the next learner steps."""
    found = []
    for k in range(steps):
        learner.step(random_batch(4, 4, seed=k), torch.ones(4), 0.0)
        found.append(learner._noise.clone())
    return found


def test_each_step_and_each_network_has_its_own_noise_that_follows_from_the_seed_and_the_step():
    learner = make_learner("rainbow")
    found = noises(learner, 4)
    rows = [row for noise in found for row in noise]
    assert len(rows) == 8 and all(x.shape == (learner.network.noise_size,) for x in rows)
    for i, x in enumerate(rows):
        assert not any(torch.equal(x, y) for y in rows[:i])
    again = make_learner("rainbow")
    again.steps = 2  # as after a resumption
    for x, y in zip(noises(again, 2), found[2:], strict=True):
        assert torch.equal(x, y)
    other = Learner(again.network, replace(again.config, seed=1))
    assert not torch.equal(noises(other, 1)[0], found[0])


def test_both_networks_are_noisy_while_they_learn_and_only_then():
    learner, batch = make_learner("rainbow"), random_batch(4, 4)
    quiet = learner.network(batch.obs)[0].q
    assert torch.equal(learner.outputs(batch)[0].q, quiet)  # nothing has been drawn yet
    learner.renew_noise()
    out, target = learner.outputs(batch)
    assert not torch.equal(out.q, quiet) and not torch.equal(target.q, quiet)
    assert not torch.equal(out.q, target.q)  # the weights are the same
    assert torch.equal(learner.network(batch.obs)[0].q, quiet)


def test_the_noise_of_a_batch_is_the_same_in_each_of_its_shares():
    learner, batch, weights = make_learner("rainbow"), random_batch(6, 5, seed=1), torch.rand(5)
    learner.renew_noise()
    whole = learner.differentiate(batch, weights)
    learner.workers, learner._pool = 2, ThreadPoolExecutor(2)
    parts = learner.differentiate(batch, weights)
    for a, b in zip(parts.grads, whole.grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    names = [name for name, _ in learner.network.named_parameters()]
    moved = {name for name, grad in zip(names, whole.grads, strict=True) if grad is not None and grad.any()}
    assert moved == set(names)  # the noise's weights, too


def test_recipes_without_noise_draw_none():
    learner = make_learner("r2d2")
    learner.step(random_batch(4, 4), torch.ones(4), 0.0)
    assert learner._noise is None


def test_a_step_is_the_same_whatever_was_drawn_before():
    one, other = make_learner("rainbow"), make_learner("rainbow")
    torch.manual_seed(5)
    other.compute(random_batch(4, 4), torch.ones(4))
    for learner in (one, other):
        for k in range(3):
            learner.step(random_batch(4, 4, seed=k), torch.ones(4), 0.0)
    assert same(weights_of(one.network), other.network)
