"""`agent.epsilon_decay`: ε falls over the run, for the actors; the trained agent has nothing of it."""

import json

import numpy as np
import pytest
import torch
from tests.support.dispatch import NoReads
from tests.support.runs import again, run
from tests.support.small import play, probe_system, small_config

import casa
from casa.engines.build import make_scale
from casa.engines.cluster.version import code_version
from casa.engines.cluster.worker import RolloutWorker, Share, Weights
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
    for left in (1.0, 0.5, 0.0):
        found, actor = greedy_share(left)
        epsilon, actions = 0.9 * left, actor.env.spec.actions.choices[0]
        assert found == pytest.approx(1 - epsilon + epsilon / actions, abs=0.03)
        if left == 0:
            assert (actor.log_mu == 0).all()  # μ(a) = 1


def test_what_is_left_of_epsilon_is_not_read_on_the_host():
    actor = probe_system("r2d2-casa", **{"agent.epsilon_decay": 0.5}).actors[0]
    actor.act()
    with torch.no_grad(), NoReads():  # in inference mode, reads do not reach it
        type(actor)._infer_on_device.__wrapped__(actor)


def test_without_decay_or_without_epsilon_the_weights_are_those_of_earlier_versions():
    assert "epsilon_left" not in network().state_dict()
    for recipe in ("casa", "rainbow"):  # they sample, and explore by noise
        assert probe_system(recipe, **{"agent.epsilon_decay": 0.5}).network.epsilon_left is None


def test_epsilon_falls_in_the_async_loop():
    system = probe_system("r2d2-casa", mode="async", steps=96 * 60, **{"agent.epsilon_decay": 0.01})
    play(system, "async")
    assert 0.01 < system.actors[0].network.epsilon_left.item() < 0.05


def test_epsilon_reaches_the_workers_of_a_cluster():
    settings = {"mode": "sync", "env.num_envs": 4, "net.backbone": "mlp", "agent.epsilon_decay": 0.5}
    config = small_config("r2d2-casa", env="CartPole-v1", **settings)
    worker = RolloutWorker()
    worker.make_envs(config, Share(0, 0, 4), code_version(), 1)
    worker.build(config, 0, make_scale(config, 4).state_dict())
    arrays = [x.detach().numpy().copy() for x in (*worker.network.parameters(), *worker.network.buffers())]
    names = [name for name, _ in (*worker.network.named_parameters(), *worker.network.named_buffers())]
    arrays[names.index("epsilon_left")] = np.float32(0.25)
    worker.reset(0, np.zeros(4, np.int64), Weights(1, arrays))
    worker.collect(1)
    assert worker.actors[0].network.epsilon_left.item() == 0.25


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
