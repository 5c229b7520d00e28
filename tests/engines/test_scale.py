"""Learning that does not depend on the unit of rewards or observations."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch
from tests.support.runs import run
from tests.support.tiny_envs import Catch

import casa
from casa.config.load import from_recipe, load_config, make_config
from casa.envs.suggest import suggest_preset
from casa.nn import Network
from casa.nn.normalize import ObsNorm
from casa.rollout.scale import ReturnScale


class Scaled(gym.Wrapper):
    def __init__(self, scale=1.0, env="CartPole-v1"):
        super().__init__(Catch() if env == "Catch" else gym.make(env))
        self.factor = scale

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, self.factor * reward, *rest


ENVS = {"classic": "CartPole-v1", "grid": "Catch"}


def scaled_run(recipe, folder, scale, preset="classic", **settings):
    """A short run on the preset's environment, whose rewards are multiplied by `scale`."""
    return casa.train(
        recipe,
        "tests.engines.test_scale:Scaled",
        6000,
        preset=preset,
        run_dir=folder / str(scale),
        env__kwargs=f"{{scale: {scale}, env: {ENVS[preset]}}}",
        env__vectorization="sync",
        log__tensorboard="no",
        quiet=True,
        **settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize("preset", ENVS)
@pytest.mark.parametrize("recipe", ["casa", "casa-plus", "ppo-casa", "ppo", "impala", "r2d2-casa", "rainbow"])
def test_the_unit_of_rewards_changes_nothing(recipe, preset, tmp_path):
    """x 2^-10 and x 2^10 are exact in floating point: the weights and the actions are the same, to the bit."""
    runs = {scale: scaled_run(recipe, tmp_path, scale, preset) for scale in (2.0**-10, 1.0, 2.0**10)}
    scores = {scale: [e["score"] / scale for e in r.episodes] for scale, r in runs.items()}
    assert scores[1.0] == scores[2.0**-10] == scores[2.0**10]
    weights = {scale: casa.load(r, trust=True).network for scale, r in runs.items()}
    for name, tensor in weights[1.0].state_dict().items():
        factor = {"return_scale": 2.0**10}.get(name, 1.0)
        assert torch.equal(tensor * factor, weights[2.0**10].state_dict()[name]), name
    # What a person reads is in the user's units.
    values = {scale: r.row["value"] for scale, r in runs.items()}
    assert values[2.0**10] == pytest.approx(2.0**10 * values[1.0], rel=1e-4)


def test_without_the_scale_the_unit_matters(tmp_path):
    runs = [scaled_run("casa", tmp_path, scale, agent__reward_scale="none") for scale in (1.0, 2.0**10)]
    small, large = ([e["length"] for e in made.episodes] for made in runs)
    assert small != large


def test_the_scale_is_the_standard_deviation_of_the_returns_so_far():
    rng = np.random.default_rng(0)
    scale = ReturnScale(3, 0.9, lambda r: 2 * r)
    returns, seen = np.zeros(3), []
    for t in range(50):
        rewards, ends, taken = rng.normal(size=3), rng.random(3) < 0.2, np.array([True, t % 5 != 0, True])
        scale.update(np.arange(3), rewards, ends, taken)
        for i in range(3):
            if taken[i]:
                returns[i] = 0.9 * returns[i] + 2 * rewards[i]
                seen.append(returns[i])
                returns[i] *= not ends[i]
    assert scale.std == pytest.approx(np.std(seen))
    again = ReturnScale(3, 0.9, lambda r: r)
    again.load_state_dict(scale.state_dict())
    assert again.std == scale.std
    assert ReturnScale(3, 0.9, lambda r: r).std == 1.0


def test_observation_moments_are_those_of_all_batches():
    batches = [torch.randn(5, 4, 3) * 7 + 2, torch.randn(1, 9, 3), torch.randn(6, 2, 3) - 5]
    norm = ObsNorm((3,))
    for batch in batches:
        norm.update(batch)
    rows = torch.cat([batch.reshape(-1, 3) for batch in batches])
    torch.testing.assert_close(norm.mean, rows.mean(0))
    torch.testing.assert_close(norm.var, rows.var(0, correction=0))
    out = norm(rows)
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    assert out.abs().max() <= 10


def test_a_grid_has_moments_per_channel():
    """Symbols 0 .. 5 in one channel, flags in the other: what a space declares as their range does not matter."""
    symbols, flags = torch.randint(6, (40, 1, 4, 5)), torch.rand(40, 1, 4, 5) < 0.1
    grid = torch.cat((symbols / 255, flags), 1)
    norm = ObsNorm((2, 4, 5))
    for part in grid.split(10):
        norm.update(part.unsqueeze(0))
    torch.testing.assert_close(norm.mean.flatten(), grid.mean((0, 2, 3)))
    torch.testing.assert_close(norm.var.flatten(), grid.var((0, 2, 3), correction=0))
    torch.testing.assert_close(norm(grid).std((0, 2, 3), correction=0), torch.ones(2), atol=1e-3, rtol=0)


def test_grids_of_an_earlier_version_were_not_normalised():
    made = [Network((2, 4, 5), 3, backbone="grid", hidden=8, obs_norm=norm) for norm in (False, True)]
    made[1].load_state_dict(made[0].state_dict())
    obs = torch.rand(1, 6, 2, 4, 5)
    assert torch.equal(made[0](obs)[0].log_pi, made[1](obs)[0].log_pi)


@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_in_units_of_tau_the_policy_does_not_depend_on_tau(tau):
    torch.manual_seed(0)
    net = Network((3,), 4, backbone="mlp-tanh", tau=tau, hidden=16, advantage_unit="tau", head_layers=1)
    obs = torch.randn(1, 5, 3)
    torch.manual_seed(0)
    other = Network((3,), 4, backbone="mlp-tanh", tau=0.5, hidden=16, advantage_unit="tau", head_layers=1)
    a, b = net(obs)[0], other(obs)[0]
    torch.testing.assert_close(a.log_pi, b.log_pi)
    torch.testing.assert_close((a.q - a.v.unsqueeze(-1)) / tau, (b.q - b.v.unsqueeze(-1)) / 0.5)


def test_an_agents_values_are_in_the_users_units(tmp_path):
    path = run("casa", tmp_path / "run", **{"agent.reward_scale": "return", "net.obs_norm": True, "steps": 400})
    agent = casa.load(path, seed=0)
    scale = float(agent.network.return_scale)
    assert scale > 1.1
    obs = torch.randn(5, 4)
    raw = agent.network(obs.unsqueeze(0))[0]
    _, _, out = agent.act(obs, agent.network.initial_state(5))
    torch.testing.assert_close(out.v, scale * raw.v[0])
    torch.testing.assert_close(out.q, scale * raw.q[0])
    torch.testing.assert_close(out.log_pi, raw.log_pi[0])


def test_weights_of_an_earlier_version_have_the_scale_one():
    net = Network((3,), 2, backbone="mlp", hidden=8)
    state = {name: x for name, x in net.state_dict().items() if name != "return_scale"}
    net.return_scale.fill_(7.0)
    net.load_state_dict(state)
    assert float(net.return_scale) == 1.0


def test_the_preset_follows_the_environment():
    assert suggest_preset("CartPole-v1") == suggest_preset("FrozenLake-v1") == "classic"
    mixed = suggest_preset("tests.test_continuous:Reach", "{mixed: true}")
    assert suggest_preset("Pendulum-v1") == mixed == "continuous"
    assert suggest_preset("Breakout") == "laptop"
    assert suggest_preset("tests.support.tiny_envs:Picture") == "laptop"
    assert suggest_preset("NoSuchThing-v9") == "laptop"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"env": "CartPole-v1"}, "casa"),
        ({"env": "tests.support.tiny_envs:Catch"}, "casa"),
        ({"env": "Pendulum-v1"}, "ppo-casa"),
        ({"env": "Breakout"}, "casa"),
        ({"env": "Pendulum-v1", "preset": "paper"}, "casa"),
        ({"env": "Pendulum-v1", "recipe": "casa"}, "casa"),
    ],
)
def test_the_recipe_follows_the_environment_unless_it_is_named(settings, expected):
    config = make_config(settings, suggest_preset)
    assert config == load_config([f"--{name}={value}" for name, value in settings.items()], suggest=suggest_preset)
    assert config == make_config({**settings, "recipe": expected}, suggest_preset)


@pytest.mark.parametrize("cuda", [False, True])
def test_grids_have_their_preset_on_every_machine(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert suggest_preset("tests.support.tiny_envs:Catch") == "grid"
    assert suggest_preset("tests.support.tiny_envs:Picture") == ("gpu" if cuda else "laptop")
    assert from_recipe("casa", "grid").device == "cpu"


def test_symbols_of_minigrid_are_a_grid():
    pytest.importorskip("minigrid")
    assert suggest_preset("tests.engines.test_scale:minigrid") == "grid"


def minigrid():
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gym.make("MiniGrid-Empty-8x8-v0"))


def test_the_target_network_sees_the_same_normalised_input(tmp_path):
    from tests.support.learner_cases import make_learner, random_batch

    learner = make_learner("r2d2", **{"net.obs_norm": True})
    network = Network((3,), 4, backbone="mlp", head="dueling", hidden=16, obs_norm=True)
    learner = type(learner)(network, dataclasses.replace(learner.config))
    learner.step(random_batch(4, 3), torch.ones(3), 0.0)
    for mine, theirs in zip(learner.target.normalizer.buffers(), network.normalizer.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    assert float(network.normalizer.count) > 0


def test_another_temperature_changes_the_policy_and_not_q(tmp_path):
    path = run("casa", tmp_path / "run", **{"agent.advantage_unit": "tau", "agent.tau": 0.1, "steps": 400})
    obs = torch.randn(1, 5, 4)
    trained, hot = (casa.load(path, tau=tau).network(obs)[0] for tau in (None, 100.0))
    assert hot.entropy().min() > np.log(2) - 1e-3 > trained.entropy().min()
    spread = [out.q.max(-1).values - out.q.min(-1).values for out in (trained, hot)]
    torch.testing.assert_close(*spread)


def test_the_actors_copy_normalises_in_fp32():
    net = Network((2,), 3, backbone="mlp", hidden=16, obs_norm=True)
    obs = 1003 + 0.1 * torch.randn(1, 200, 2)
    net.normalizer.update(obs)
    expected = net(obs)[0].log_pi
    torch.testing.assert_close(net.to_bf16()(obs.bfloat16().float() * 0 + obs)[0].log_pi, expected, atol=0.02, rtol=0)
