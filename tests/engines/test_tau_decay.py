"""`agent.tau_decay`: the temperature falls over the run, for the learner, the actors and the trained agent."""

import dataclasses
import json

import pytest
import torch
from tests.support.dispatch import NoReads
from tests.support.learner_cases import make_learner, random_batch
from tests.support.runs import again, run

import casa
from casa.actions import ActionSpec
from casa.engines.mailbox import Mailbox
from casa.heads import HEADS
from casa.learn.diagnostics import DIAGNOSTICS
from casa.learn.objective import objective
from casa.nn import Network
from casa.run import checkpoint
from casa.run.agent import Agent
from casa.run.evaluate import evaluate

DECAY = {"agent.tau_decay": 0.25, "agent.tau": 0.4, "agent.advantage_unit": "tau"}


def network(**more):
    torch.manual_seed(0)
    return Network((3,), 4, backbone="mlp-tanh", hidden=16, head_layers=1, **more)


@pytest.mark.parametrize("unit", ["tau", "return"])
def test_what_is_left_of_tau_is_the_temperature(unit):
    annealed, cold = network(tau=0.4, tau_anneals=True, advantage_unit=unit), network(tau=0.1, advantage_unit=unit)
    annealed.tau_left.fill_(0.25)
    obs = torch.randn(2, 5, 3)
    expected = cold(obs)[0]
    for _ in range(2):
        for mine, theirs in zip(annealed(obs)[0].tensors(), expected.tensors(), strict=True):
            torch.testing.assert_close(mine, theirs)
        annealed.end_annealing()
    assert annealed.tau == pytest.approx(0.1)
    assert annealed.state_dict().keys() == cold.state_dict().keys()


@pytest.mark.parametrize("norm", [False, True])
def test_the_objective_has_what_is_left_of_tau(norm):
    settings = {**DECAY, "agent.advantage_norm": norm, "agent.entropy_cost": 0.01}
    learner, batch = make_learner("casa", **settings), random_batch(6, 5, seed=3)
    weights = torch.ones(5)
    out, steps = learner.outputs(batch)[0], learner.trained_steps(batch, weights)
    cold = dataclasses.replace(learner.agent, tau=0.1)
    found = objective(out, None, steps._replace(tau_left=torch.tensor(0.25)), learner.agent)
    expected = objective(out, None, steps, cold)
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.loss != objective(out, None, steps, learner.agent).loss


def test_without_decay_the_weights_are_those_of_earlier_versions():
    assert "tau_left" not in network(tau=0.4).state_dict()
    assert "tau_left" not in network(head="actor-critic", tau_anneals=True).state_dict()


def test_a_run_anneals_tau_and_its_agent_acts_at_the_last_one(tmp_path):
    path = run("casa", tmp_path / "run", **DECAY, steps=2000)
    saved = checkpoint.load(path).state
    left = float(saved["model"]["tau_left"])
    assert 0.25 < left < 0.3  # the last learner step is before the end
    assert 0.25 < float(saved["actor"]["acting"]["tau_left"]) < 0.4
    agent = casa.load(path)
    assert agent.network.tau == agent.trained_tau == pytest.approx(0.4 * left)
    assert evaluate(agent, episodes=1)["modes"]["sampled"]["policy"] == "a ~ π"
    assert evaluate(casa.load(path, tau=0.4), episodes=1)["modes"]["sampled"]["policy"] == "a ~ softmax(A / 0.4)"
    again(path, steps=4000, lr=agent.config.learner.lr / 5)
    seen = [json.loads(line)["tau"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert seen[-1] < 0.12 < 0.14 < max(seen[len(seen) // 2 :]) < 0.18  # resumed at a fifth of what falls
    with pytest.raises(casa.UserError, match=r"in training it was 0\.10"):
        casa.load(path, tau=-1)


@pytest.mark.parametrize("head", [name for name in HEADS if HEADS[name].tempered])
def test_a_temperature_that_falls_is_not_read_on_the_host(head):
    actions = ActionSpec.box([-1, -1], [1, 1]) if head == "casa-gaussian" else 4
    net = Network((3,), actions, backbone="mlp", hidden=8, head=head, tau=0.4, tau_anneals=True)
    with NoReads():
        out = net(torch.randn(2, 5, 3))[0]
        out.boltzmann_entropy(net.tau * net.tau_left)


def test_the_actors_copy_in_bf16_has_the_temperature_in_fp32():
    learning, acting = network(tau=0.4, tau_anneals=True), network(tau=0.4, tau_anneals=True).to_bf16()
    learning.tau_left.fill_(0.3)
    Mailbox(learning).pull(acting)
    assert torch.equal(acting.tau_left, learning.tau_left)


def test_the_entropy_of_q_is_that_of_what_is_left_of_tau():
    """`entropy_q` is that of softmax(Q/τ)."""
    batch = random_batch(6, 5, seed=3)

    def entropy(tau, left=None):
        learner = make_learner("casa", **{"agent.tau": tau})
        learner.network.tau_left = left
        return DIAGNOSTICS["conflict"](learner, batch)["entropy_q"]

    assert entropy(0.4, torch.tensor(0.25)) == pytest.approx(entropy(0.1)) != pytest.approx(entropy(0.4))


def test_an_agent_leaves_the_network_that_it_is_given(tmp_path):
    path = run("casa", tmp_path / "run", **DECAY, steps=400)
    agent = casa.load(path)
    for name in ("tau", "epsilon"):
        net = network(tau=0.4, **{f"{name}_anneals": True})
        mine = Agent(agent.config, agent.spec, net)
        assert getattr(net, f"{name}_left") is not None and getattr(mine.network, f"{name}_left") is None
