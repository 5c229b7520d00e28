"""casa.load and Agent.predict: the same actions as the network gives over a whole sequence."""

from dataclasses import asdict, replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console

import casa
from casa.actions import ActionSpec
from casa.config.load import make_config, to_yaml
from casa.engines.build import build_network
from casa.engines.resolve import pick_backbone
from casa.envs.types import EnvSpec
from casa.errors import UserError
from casa.run import checkpoint
from casa.run.agent import EPSILON, Agent
from casa.run.training import train

SMALL = {
    "recipe": "ppo-casa",
    "preset": "laptop",
    "mode": "sync",
    "env": {"id": "CartPole-v1", "num_envs": 4},
    "steps": 300,
    "device": "cpu",
    "net": {"hidden": 16},
    "data": {"batch": 4, "seq_len": 10, "rollout": 0},
    "checkpoint": {"every_steps": 100, "keep": 10},
    "log": {"tensorboard": "no"},
}
THREE = ActionSpec.discrete(3)
SPEC = EnvSpec("Four-v0", 1, (4,), np.dtype(np.float32), THREE, 1, "vector", None, 1, "sync")


def trained(path, lstm):
    train(make_config({**SMALL, "net": {"hidden": 16, "lstm": lstm}, "run_dir": str(path)}), Console(quiet=True))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "plain", lstm=0)


@pytest.fixture(scope="module")
def recurrent_run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "lstm", lstm=8)


def made(recipe="ppo-casa", spec=SPEC, **settings):
    """An agent with large random weights: its actions depend on all that it sees and remembers."""
    config = make_config({**SMALL, "recipe": recipe, **settings})
    config = replace(config, net=replace(config.net, backbone=pick_backbone(config, spec.kind)))
    torch.manual_seed(0)
    network = build_network(config, spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4)
    return Agent(config, spec, network, seed=0)


@pytest.fixture
def memory_agent():
    return made(**{"net.lstm": 8})


def sequence(steps=40, batch=6):
    rng = np.random.default_rng(1)
    return rng.normal(size=(steps, batch, 4)).astype(np.float32), rng.random((steps, batch)) < 0.1


def test_predict_step_by_step_is_the_networks_sequence(memory_agent):
    obs, starts = sequence()
    out, last = memory_agent.network(torch.as_tensor(obs), None, torch.as_tensor(starts))
    expected = out.log_pi.argmax(-1).numpy()
    assert len(np.unique(expected)) == 3
    state, found = None, []
    for o, start in zip(obs, starts, strict=True):
        actions, state = memory_agent.predict(o, state, start, deterministic=True)
        found.append(actions)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(state, last.numpy(), atol=1e-5)
    # the sequence is one that cannot be predicted without the memory, or with one that is never reset
    without = [memory_agent.predict(o, deterministic=True)[0] for o in obs]
    never_reset, _ = memory_agent.network(torch.as_tensor(obs))
    assert (np.array(without) != expected).any()
    assert (never_reset.log_pi.argmax(-1).numpy() != expected).any()


def test_a_single_observation_is_a_row_of_a_batch(memory_agent):
    obs, _ = sequence()
    state = np.random.default_rng(2).normal(size=(6, 16)).astype(np.float32)
    starts = np.array([True, False] * 3)
    actions, after = memory_agent.predict(obs[0], state, starts, deterministic=True)
    assert actions.shape == (6,) and actions.dtype == np.int64 and after.shape == (6, 16)
    for i in range(6):
        action, memory = memory_agent.predict(obs[0, i], state[i], bool(starts[i]), deterministic=True)
        assert isinstance(action, np.integer) and action == actions[i]
        assert memory.shape == (16,)
        np.testing.assert_allclose(memory, after[i], atol=1e-6)


def test_episode_start_forgets_and_none_is_zeros(memory_agent):
    obs, _ = sequence()
    state = np.ones((6, 16), np.float32)
    _, fresh = memory_agent.predict(obs[0])
    _, forgotten = memory_agent.predict(obs[0], state, True)
    _, zeros = memory_agent.predict(obs[0], torch.zeros(6, 16), [False] * 6)
    _, kept = memory_agent.predict(obs[0], state, False)
    np.testing.assert_array_equal(forgotten, fresh)
    np.testing.assert_array_equal(zeros, fresh)
    assert not np.allclose(kept, fresh)
    np.testing.assert_array_equal(state, 1)  # the caller's array is not written to


def test_sampled_actions_follow_the_policy():
    agent = made(**{"agent.tau": 1.0})
    obs = np.tile(np.array([0.1, -0.2, 0.3, 0.1], np.float32), (20_000, 1))
    pi = agent.network(torch.as_tensor(obs[None, :1]))[0].log_pi.exp()[0, 0].numpy()
    assert pi.max() < 0.95
    actions, state = agent.predict(obs)
    assert state is None
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / len(obs), pi, atol=0.015)
    agent.seed(7)
    first, _ = agent.predict(obs)
    again, _ = agent.predict(obs)
    agent.seed(7)
    np.testing.assert_array_equal(agent.predict(obs)[0], first)
    assert (again != first).any()


def test_value_based_agents_follow_q_and_stray_with_epsilon():
    agent = made("ppo-type5", **{"agent.behaviour": "epsilon-greedy"})  # its Q is not its policy
    obs, _ = sequence(1, 5000)
    out, _ = agent.network(torch.as_tensor(obs))
    best = out.q[0].argmax(-1).numpy()
    assert (best != out.log_pi[0].argmax(-1).numpy()).mean() > 0.2
    np.testing.assert_array_equal(agent.predict(obs[0], deterministic=True)[0], best)
    strayed = np.mean([agent.predict(obs[0])[0] != best for _ in range(20)])
    assert strayed == pytest.approx(EPSILON * 2 / 3, rel=0.5)  # 67 of 100,000, give or take 8
    sampling = made("ppo-type5")
    np.testing.assert_array_equal(sampling.predict(obs[0], deterministic=True)[0], out.log_pi[0].argmax(-1).numpy())


def test_load_gives_the_weights_that_were_saved(run, recurrent_run):
    for path in (run, recurrent_run):
        agent = casa.load(path)
        saved = checkpoint.load(path)
        assert (agent.step, agent.path) == (saved.step, saved.path) and 300 <= saved.step < 304
        assert agent.spec.obs_shape == (4,) and agent.spec.kind == "vector"
        assert agent.spec.actions == ActionSpec.discrete(2)
        assert agent.spec.obs_dtype == np.float32 and agent.config.recipe == "ppo-casa"
        for name, weight in agent.network.state_dict().items():
            torch.testing.assert_close(weight, saved.state["model"][name], rtol=0, atol=0)
    assert casa.load(recurrent_run).recurrent and not casa.load(run).recurrent


def test_load_by_step_best_and_folder(run):
    def weights(agent):
        return torch.cat([p.flatten() for p in agent.network.parameters()])

    steps = sorted(int(folder.name.split("-")[1]) for folder in (run / "checkpoints").glob("step-*"))
    first = next(step for step in steps if step)  # the first after 100 agent steps
    assert 100 <= first < 104
    earlier = casa.load(run, which=first)
    assert earlier.step == first and not torch.equal(weights(earlier), weights(casa.load(run)))
    assert torch.equal(weights(casa.load(str(earlier.path))), weights(earlier))
    assert casa.load(run, "best").path == checkpoint.load(run, "best").path
    with pytest.raises(UserError, match=f"no checkpoint at step 130; the nearest one is at {first}"):
        casa.load(run, 130)
    with pytest.raises(UserError, match=f"is one checkpoint, of step {first}"):
        casa.load(earlier.path, "best")
    with pytest.raises(UserError, match="does not exist"):
        casa.load(run / "nowhere")


def test_load_with_another_temperature(run, tmp_path):
    """log softmax(A/τ') is log softmax(A/τ) times τ/τ', up to a constant of the state."""
    obs = torch.randn(1, 5, 4)
    trained, colder = (casa.load(run, tau=tau).network(obs)[0].log_pi for tau in (None, 0.01))
    tau = casa.load(run).config.agent.tau
    torch.testing.assert_close(colder, torch.log_softmax(trained * tau / 0.01, -1))
    assert not torch.allclose(colder, trained)
    for wrong in (0.0, -1.0, 1e-300, float("nan"), float("inf")):
        with pytest.raises(UserError, match=r"tau must be from 1e-06 to 1e\+06, got .*; in training it was 0\.02"):
            casa.load(run, tau=wrong)
    assert torch.isfinite(casa.load(run, tau=1e-6).network(obs)[0].log_pi.max(-1).values).all()
    for recipe, head, behaviour in (("ppo", "actor-critic", "sample"), ("r2d2-casa", "casa", "epsilon-greedy")):
        train(
            make_config({**SMALL, "recipe": recipe, "steps": 40, "run_dir": str(tmp_path / recipe)}),
            Console(quiet=True),
        )
        with pytest.raises(UserError, match=f"tau 0.5 has no meaning for the {head} head and '{behaviour}' behaviour"):
            casa.load(tmp_path / recipe, tau=0.5)


def test_load_makes_no_environment_and_touches_no_generator(run, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("an environment was made")

    monkeypatch.setattr(gym, "make", fail)
    before = torch.random.get_rng_state()
    agent = casa.load(run)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert agent.predict([0.0, 0.1, 0.2, 0.3])[0] in (0, 1)


def test_checkpoints_that_do_not_fit_themselves(run, tmp_path):
    saved = checkpoint.load(run)
    model = {"model": saved.state["model"]}
    checkpoint.save(tmp_path / "a", 1, model, {"config": saved.meta["config"]})
    with pytest.raises(UserError, match="does not say what its agent observes"):
        casa.load(tmp_path / "a")
    five = {**saved.meta["spec"], "actions": asdict(ActionSpec.discrete(5))}
    checkpoint.save(tmp_path / "b", 1, model, {**saved.meta, "spec": five})
    with pytest.raises(UserError, match="are of another network than this version of casa builds"):
        casa.load(tmp_path / "b")
    wider = make_config({**SMALL, "net": {"hidden": 32}})
    checkpoint.save(tmp_path / "c", 1, model, {**saved.meta, "config": to_yaml(wider)})
    with pytest.raises(UserError, match="are of another network than this version of casa builds"):
        casa.load(tmp_path / "c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"obs": np.zeros(5)}, r"obs has shape \(5,\), but .* one observation \(4,\) or a batch \(N, 4\)"),
        ({"obs": np.zeros((2, 2, 4))}, r"obs has shape \(2, 2, 4\)"),
        ({"obs": 3}, r"obs has shape \(\)"),
        ({"obs": ["a", "b", "c", "d"]}, "obs has dtype <U1, but Four-v0 gives float32"),
        ({"obs": [0, np.nan, 0, 0]}, "obs holds NaN or infinity"),
        ({"obs": np.zeros(4), "state": np.zeros((1, 16))}, r"state has shape \(1, 16\), but .* must be \(16,\)"),
        ({"obs": np.zeros((3, 4)), "state": np.zeros((2, 16))}, r"must be \(3, 16\)"),
        ({"obs": np.zeros((3, 4)), "episode_start": [True, False]}, "one bool or 3 of them, got shape"),
        ({"obs": np.zeros(4), "episode_start": 1.0}, "episode_start must be one bool, got shape .* float64"),
    ],
)
def test_wrong_arguments_are_named(memory_agent, arguments, message):
    with pytest.raises(ValueError, match=message):
        memory_agent.predict(**arguments)


def test_a_state_for_an_agent_without_memory_is_refused():
    with pytest.raises(ValueError, match="state must be None: the ppo-casa agent of this run has no memory"):
        made().predict(np.zeros(4), np.zeros(16))


def test_images_must_be_bytes():
    spec = EnvSpec("Image-v0", 1, (4, 24, 24), np.dtype(np.uint8), THREE, 4, "image", None, 1, "sync")
    agent = made(spec=spec)
    image = np.random.default_rng(0).integers(256, size=spec.obs_shape, dtype=np.uint8)
    flipped = image[:, ::-1]  # a view with negative strides
    flipped.flags.writeable = False
    expected = agent.network(torch.as_tensor(flipped.copy())[None, None])[0].log_pi.argmax()
    assert agent.predict(flipped, deterministic=True)[0] == expected
    assert agent.predict(torch.as_tensor(image))[0] in range(3)
    with pytest.raises(ValueError, match="obs has dtype float64, but Image-v0 gives uint8; pass it unscaled"):
        agent.predict(image / 255)
