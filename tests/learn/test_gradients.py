"""PCGrad against its literal definition, and in the learner."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.learner_cases import ACTIONS, OBS, random_batch
from tests.support.small import small_config

from casa.errors import UserError
from casa.learn.gradients import GRADIENTS, added, pcgrad
from casa.learn.learner import Learner
from casa.nn import Network

SHAPES = ((2, 3), (4,), (1,))
EDGES = (0, 6, 10, 11)


def literal(vectors):
    """Algorithm 1 of the publication, with the order of the tasks."""
    total = np.zeros_like(vectors[0])
    for i, vector in enumerate(vectors):
        mine = vector.copy()
        for j, other in enumerate(vectors):
            if i != j and mine @ other < 0:
                mine = mine - (mine @ other) / (other @ other) * other
        total = total + mine
    return total


def in_parts(vector, missing=()):
    pieces = [torch.tensor(vector[a:b]).view(shape) for (a, b), shape in zip(pairwise(EDGES), SHAPES, strict=True)]
    return [None if i in missing else piece for i, piece in enumerate(pieces)]


def flat(grads):
    found = [torch.zeros(shape) if g is None else g for g, shape in zip(grads, SHAPES, strict=True)]
    return torch.cat([x.flatten() for x in found]).numpy()


@given(st.integers(1, 4), st.integers(0, 2**31), st.sampled_from([1.0, 1e-12, 1e8]))
def test_pcgrad_is_the_literal_algorithm(tasks, seed, scale):
    rng = np.random.default_rng(seed)
    vectors = scale * rng.normal(size=(tasks, 11))
    missing = [(int(rng.integers(3)),) if rng.random() < 0.5 else () for _ in range(tasks)]
    for vector, gone in zip(vectors, missing, strict=True):
        for part in gone:
            vector[EDGES[part] : EDGES[part + 1]] = 0
    found = pcgrad([in_parts(vector, gone) for vector, gone in zip(vectors, missing, strict=True)])
    np.testing.assert_allclose(flat(found), literal(vectors), atol=1e-12 * scale)
    if tasks == 2:  # the sum no longer goes against either of the two
        assert min(vectors @ flat(found)) > -1e-12 * scale**2


def test_without_conflict_it_is_the_sum():
    one, other = np.linspace(0.1, 1, 11), np.linspace(2, 0.5, 11)
    np.testing.assert_allclose(flat(pcgrad([in_parts(one), in_parts(other)])), one + other)
    apart = [in_parts(one, missing=(1, 2)), in_parts(-one, missing=(0,))]  # no parameter in common
    np.testing.assert_allclose(flat(pcgrad(apart)), flat(added(apart)))
    nothing = in_parts(np.zeros(11))
    np.testing.assert_allclose(flat(pcgrad([in_parts(one), nothing])), one)


def learner_of(name, **changes):
    torch.manual_seed(0)
    config = small_config("ppo-pcgrad", **{"agent.gradients": name, **changes})
    return Learner(Network((OBS,), ACTIONS, head="actor-critic", hidden=16, backbone="mlp-tanh"), config)


@pytest.mark.parametrize("cost", [0.0, 0.5])
def test_the_learner_projects_the_gradients_of_its_losses(cost):
    learner = learner_of("pcgrad", **{"agent.entropy_cost": cost})
    conflicts = 0
    for seed in range(8):
        batch, weights = random_batch(12, 8, seed=seed), torch.ones(8)
        result = learner.compute(batch, weights)
        torch.testing.assert_close(sum(result.weighted), result.loss)
        parameters = learner.optimizer.parameters

        def gradient(loss):
            return torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)  # noqa: B023

        def vector(grads):
            pairs = zip(grads, parameters, strict=True)  # noqa: B023
            return np.concatenate([np.zeros(p.numel()) if g is None else g.numpy().ravel() for g, p in pairs])

        of_v, of_j = (vector(gradient(term)).astype(float) for term in result.weighted)
        found = vector(learner.differentiate(batch, weights).grads)
        np.testing.assert_allclose(found, literal(np.stack([of_v, of_j])), rtol=1e-3, atol=1e-6)
        if of_v @ of_j < 0:
            conflicts += 1
            plain = vector(learner_of("sum", **{"agent.entropy_cost": cost}).differentiate(batch, weights).grads)
            assert np.abs(found - plain).max() > 1e-5
    assert 0 < conflicts < 8


def test_a_combination_of_the_users_is_called():
    calls = []

    def mine(gradients):
        calls.append(len(gradients))
        return added(gradients)

    GRADIENTS.add("counted", mine, __name__)
    try:
        learner = learner_of("counted")
        batch, weights = random_batch(12, 8, seed=1), torch.ones(8)
        expected = learner_of("sum").differentiate(batch, weights)
        found = learner.differentiate(batch, weights)
    finally:
        GRADIENTS._entries.pop("counted")
    assert calls == [2]
    for a, b in zip(found.grads, expected.grads, strict=True):
        torch.testing.assert_close(a, b)


def test_a_loss_that_is_constant_has_no_gradient(monkeypatch):
    learner, batch = learner_of("pcgrad"), random_batch(12, 8, seed=1)
    result = learner.compute(batch, torch.ones(8))
    monkeypatch.setattr(learner, "compute", lambda *_: result._replace(weighted=[*result.weighted, torch.ones(())]))
    found, expected = (each.differentiate(batch, torch.ones(8)).grads for each in (learner, learner_of("pcgrad")))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_threads_and_learners_that_add_gradients_are_not_combined():
    from casa.engines.resolve import pick_workers

    config = small_config("ppo-pcgrad")
    config = replace(config, net=replace(config.net, backbone="impala-shallow"))
    assert pick_workers(config, torch.device("cpu"), "image", overlap=False) == 1
    plain = replace(config, agent=replace(config.agent, gradients="sum"))
    assert pick_workers(plain, torch.device("cpu"), "image", overlap=False) > 1
    several = {"engine": "ray", "cluster.learners": 2, "device": "cpu"}
    with pytest.raises(UserError, match=r"cluster.learners 2 needs agent.gradients 'sum', got 'pcgrad'"):
        small_config("ppo-pcgrad", **several)
    assert small_config("ppo", **several).cluster.learners == 2
