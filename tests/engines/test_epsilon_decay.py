"""`agent.epsilon_decay`: ε falls over the run, for the actors; the trained agent has nothing of it."""

import json

import numpy as np
import pytest
import torch
from tests.support.runs import again, run
from tests.support.small import probe_system

import casa
from casa.engines.mailbox import Mailbox
from casa.nn import Network
from casa.run import checkpoint


def network(**more):
    return Network((3,), 4, backbone="mlp", hidden=8, **more)


def greedy_share(left):
    """How often an actor with ε = 0.9^(1 to 1.001) takes the best action when `left` is left of it."""
    settings = {"agent.epsilon_base": 0.9, "agent.epsilon_range": (1.0, 1.001), "agent.epsilon_decay": 0.5}
    system = probe_system("r2d2-casa", **settings)
    actor = system.actors[0]
    actor.network.epsilon_left.fill_(left)
    taken = []
    for _ in range(40):
        best = actor._forward()[0].argmax_q()
        actor.act()
        taken.append((actor.actions == best).float().mean().item())
        actor.absorb()
    return np.mean(taken), actor


def test_an_actor_explores_with_what_is_left_of_epsilon():
    actions = greedy_share(1.0)[1].env.spec.actions.choices[0]
    for left in (1.0, 0.5, 0.0):
        found, actor = greedy_share(left)
        epsilon = 0.9 * left
        assert found == pytest.approx(1 - epsilon + epsilon / actions, abs=0.03)
        if left == 0:
            assert (actor.log_mu == 0).all()  # μ(a) = 1


def test_without_decay_the_weights_are_those_of_earlier_versions():
    assert "epsilon_left" not in network().state_dict()


def test_epsilon_reaches_a_bf16_actor_in_fp32():
    learning, acting = network(epsilon_anneals=True), network(epsilon_anneals=True).to_bf16()
    learning.epsilon_left.fill_(0.3)
    Mailbox(learning).pull(acting)
    assert torch.equal(acting.epsilon_left, learning.epsilon_left)


def test_epsilon_falls_over_a_run_and_goes_on_after_a_pause(tmp_path):
    path = run("r2d2-casa", tmp_path / "run", **{"agent.epsilon_decay": 0.01, "steps": 800})

    saved = checkpoint.load(path).state
    assert 0.01 < float(saved["model"]["epsilon_left"]) < 0.012  # the last learner step is before the end
    assert 0.01 < float(saved["actor"]["acting"]["epsilon_left"]) < 0.02
    assert casa.load(path).network.epsilon_left is None
    again(path, steps=1600, lr=casa.load(path).config.learner.lr / 5)
    seen = [json.loads(line)["epsilon_left"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert seen[-1] < 0.012 < 0.02 < max(seen[len(seen) // 2 :]) < 0.03  # resumed at 0.01 ** 0.8
