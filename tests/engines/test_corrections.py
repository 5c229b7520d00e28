"""Small things that were wrong once, each with a test that fails when it is wrong again."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from tests.support.learner_cases import make_learner, random_batch
from tests.support.runs import again, quiet, rows, run, run_config, said
from tests.support.small import small_config

from casa.engines.build import build_system
from casa.engines.loops import LOOPS
from casa.engines.mailbox import Mailbox
from casa.errors import UserError
from casa.learn.objective import TrainedSteps, objective
from casa.nn import Network
from casa.run.training import resume, train

CARTPOLE = {"env": "CartPole-v1", "env.vectorization": "sync", "env.num_envs": 8, "agent.reward": "raw", "mode": "sync"}


class TestOutputLayersAreFp32:
    def network(self):
        torch.manual_seed(0)
        return Network((6,), 3, backbone="mlp", hidden=64)

    def outputs(self, network, obs):
        return network(obs.unsqueeze(0))[0].map(lambda x: x[0])

    def test_in_the_actor(self):
        network = self.network()
        with torch.no_grad():
            network.outputs["value"].linear2.bias.fill_(1000.0)
            network.outputs["value"].linear2.weight.mul_(10)
        obs = torch.randn(50, 6)
        exact = self.outputs(network, obs).v
        half = self.outputs(network.to_bf16(), obs).v
        assert half.dtype == torch.float32
        # bf16 numbers near 1000 are 4 apart: all 50 values would be one or two of them.
        assert len(half.unique()) > 40
        assert (half - exact).abs().max() < 0.1

    def test_in_the_learner(self):
        network = self.network()
        with torch.no_grad():
            network.outputs["value"].linear2.bias.fill_(1000.0)
            network.outputs["value"].linear2.weight.mul_(10)
        obs = torch.randn(50, 6)
        with torch.autocast("cpu", torch.bfloat16):
            v = self.outputs(network, obs).v
        assert v.dtype == torch.float32 and len(v.unique()) > 40

    def test_the_rest_is_bf16(self):
        network = self.network().to_bf16()
        kinds = {name: p.dtype for name, p in network.named_parameters()}
        assert {name for name, kind in kinds.items() if kind == torch.float32} == {
            f"outputs.{output}.linear2.{part}" for output in ("advantage", "value") for part in ("weight", "bias")
        }


def test_reset_steps_are_no_agent_steps():
    """In CartPole with random actions about one step in 22 only resets the environment."""
    system = build_system(small_config("casa", steps=4000, **CARTPOLE))
    system.begin()
    episodes = [episode for progress in LOOPS["sync"](system) for episode in progress.episodes]
    lengths = [episode.length for episode in episodes]
    assert lengths == [episode.score for episode in episodes]  # every step that counts is worth 1
    running = sum(int(actor.length.sum()) for actor in system.actors)
    assert len(lengths) > 100
    assert system.steps == sum(lengths) + running
    system.close()


class TestLearningRate:
    def rates(self, monkeypatch):
        """Every rate that is set from now on."""
        from casa.learn.optimizer import Optimizer

        found = []
        schedule = Optimizer.schedule

        def noted(self, *args):
            schedule(self, *args)
            found.append(float(self.lr))

        monkeypatch.setattr(Optimizer, "schedule", noted)
        return found

    def test_no_update_has_rate_0(self, tmp_path, monkeypatch):
        found = self.rates(monkeypatch)
        run("ppo-casa", tmp_path / "run", mode="async")
        assert len(found) > 10 and min(found) > 0

    def test_more_steps_do_not_raise_the_rate(self, tmp_path, monkeypatch):
        config = run_config("ppo-casa", tmp_path / "run", steps=1600)
        train(dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every_steps=800)), quiet())
        for path in sorted((tmp_path / "run/checkpoints").glob("step-*"))[2:]:  # as if it had been killed half-way
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        found = self.rates(monkeypatch)
        again(tmp_path / "run", steps=3200)
        before = 1e-2 * (1 - 800 / 1600)
        assert found[0] <= before * 1.02 and found[0] > 0.9 * before
        assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(found))
        assert found[-1] < 0.1 * before

    def test_a_finished_run_needs_a_new_rate(self, tmp_path, monkeypatch):
        path = run("ppo-casa", tmp_path / "run", steps=4000)
        with pytest.raises(UserError, match=r"the learning rate .* has come down to .* give --lr, at most its peak"):
            resume(path, quiet(), steps=8000)
        with pytest.raises(UserError, match=r"lr must be > 0 and at most the run's own learner.lr 0.01, got 1"):
            resume(path, quiet(), steps=8000, lr=1.0)
        found = self.rates(monkeypatch)
        resume(path, quiet(), steps=8000, lr=2e-3)
        assert 1.9e-3 < found[0] <= 2e-3 and 0 < found[-1] < 2e-4
        assert rows(path)[-1]["step"] >= 8000


def test_the_mailbox_carries_buffers():
    class Normalised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.register_buffer("mean", torch.zeros(2))

    learner, actor = Normalised(), Normalised()
    box = Mailbox(learner)
    learner.mean.fill_(3.0)
    box.publish(1)
    box.pull(actor)
    assert torch.equal(actor.mean, torch.full((2,), 3.0))
    assert torch.equal(actor.layer.weight, learner.layer.weight)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_loss_of_weight_0_may_be_infinite(which):
    """0 · ∞ is not a number: a term that has no weight is left out."""
    learner = make_learner("ppo-casa")
    batch = random_batch(4, 3, ends=0)
    out, _ = learner.outputs(batch)
    trained = TrainedSteps(
        batch.actions, batch.log_mu, batch.rewards, batch.terminated, batch.truncated, batch.valid, torch.ones(3)
    )
    weights = tuple(0.0 if i == which else 1.0 for i in range(3))
    agent = dataclasses.replace(learner.agent, weights=weights)
    if which == 0:
        out = dataclasses.replace(out, v=out.v * 1e30)  # L_V overflows
        agent = dataclasses.replace(agent, lam=0.0)
    result = objective(out, None, trained, dataclasses.replace(agent, weights=weights))
    if which == 0:
        assert torch.isinf(result.scalars["loss_v"])
        with_it = objective(out, None, trained, dataclasses.replace(agent, weights=(1.0, 0.0, 0.0)))
        assert not torch.isfinite(with_it.loss)
        result = objective(out, None, trained, dataclasses.replace(agent, weights=(0.0, 0.0, 1e-30)))
    assert torch.isfinite(result.loss)


def test_a_run_directory_without_a_value_gets_its_default_name(tmp_path, monkeypatch):
    from casa.config.load import load_config

    file = tmp_path / "run.yaml"
    file.write_text("run_dir:\nenv: CartPole-v1\n")
    assert load_config(["--preset", "laptop"], file).run_dir == "runs/casa-CartPole-v1-0"


def test_config_yaml_holds_no_auto(tmp_path):
    path = run("casa", tmp_path / "run", **{"device": "auto", "mode": "auto", "precision": "auto", "steps": 80})
    text = (path / "config.yaml").read_text()
    assert [line for line in text.splitlines() if "auto" in line and "run_dir" not in line] == []
    assert "device: cpu" in text and "backbone: mlp" in text and "vectorization: sync" in text


def test_a_resumed_run_says_where_it_goes_on(tmp_path):
    path = run("ppo-casa", tmp_path / "run")
    console = quiet()
    resume(path, console, steps=1600, lr=1e-3)
    assert "resumed at" in said(console)
    assert np.all(np.diff([row["step"] for row in rows(path)]) > 0)
