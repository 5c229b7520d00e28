"""A trained `rainbow`: its noise is for learning and sampled play alone, and what it cannot do is said."""

import numpy as np
import pytest
import torch
from tests.support.runs import run
from tests.support.small import small_config

import casa
from casa.config.load import make_config
from casa.engines.build import build_system
from casa.envs import make_env
from casa.errors import UserError
from casa.run.evaluate import evaluate


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    scaled = {"agent.reward": "raw", "agent.reward_scale": "return", "net.obs_norm": True}
    return run("rainbow", tmp_path_factory.mktemp("runs") / "rainbow", **scaled, **{"agent.support": (-5.0, 6.0)})


@pytest.fixture
def obs():
    return np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)


def test_the_importance_exponent_goes_on_in_a_run_that_is_resumed_without_its_replay():
    changes = {"recipe": "rainbow", "preset": "classic", "env": "CartPole-v1", "steps": 1000}
    first, resumed, with_replay = (build_system(make_config(changes)) for _ in range(3))
    first.steps = 600
    groups, meta = first.state(with_replay=False)
    resumed.load_state(groups, meta)
    assert resumed.sampler._beta() == pytest.approx(0.4 + 0.6 * 0.6)
    with_replay.load_state(*resumed.state(with_replay=True))
    assert with_replay.sampler._beta() == pytest.approx(0.4 + 0.6 * 0.6)
    for system in (first, resumed, with_replay):
        system.close()


def test_deterministic_play_has_no_noise_and_sampled_play_has(path, obs):
    agent = casa.load(path, seed=3)
    with torch.no_grad():  # so that the noise, which is still small, changes actions
        for output in agent.network.outputs.values():
            output.linear2.deviation.weight.mul_(20)
    best = agent.network(torch.as_tensor(obs)[None])[0].q[0].argmax(-1).numpy()
    for _ in range(2):
        np.testing.assert_array_equal(agent.predict(obs, deterministic=True)[0], best)
    first, again = agent.predict(obs)[0], agent.predict(obs)[0]
    assert 0.02 < (first != best).mean() < 0.6 and (first != again).any()
    agent.seed(3)
    np.testing.assert_array_equal(agent.predict(obs)[0], first)
    assert agent.predict(obs[0])[0] in (0, 1)


def test_q_is_the_mean_of_the_distribution_in_the_users_units(path, obs):
    agent = casa.load(path)
    _, _, out = agent.consider(obs, deterministic=True)
    scale = float(agent.network.return_scale)
    assert scale > 1.1 and out.log_p.shape == (400, 2, 51)
    z = torch.linspace(-5, 6, 51)
    torch.testing.assert_close(out.q, scale * (out.log_p.exp() * z).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.v, out.mean_q(), rtol=1e-4, atol=1e-4)


def test_evaluation_says_how_it_acts(path):
    modes = evaluate(casa.load(path), 2)["modes"]
    assert [modes[mode]["policy"] for mode in modes] == ["argmax Q", "argmax Q, noisy network"]
    again = evaluate(casa.load(path), 2)["modes"]
    assert [again[mode]["returns"] for mode in modes] == [modes[mode]["returns"] for mode in modes]


def test_it_is_exported_without_noise(path, obs, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    agent = casa.load(path)
    session = ort.InferenceSession(str(agent.to_onnx(tmp_path / "agent.onnx")))
    action, q = session.run(["action", "q"], {"obs": obs})
    expected, _, out = agent.consider(obs, deterministic=True)
    np.testing.assert_allclose(q, out.q.numpy(), rtol=1e-4, atol=1e-4)
    assert (action == expected).mean() > 0.99


def test_acting_has_new_noise_in_each_step_for_each_environment():
    config = small_config("rainbow", **{"env": "CartPole-v1", "env.num_envs": 3, "env.vectorization": "sync"})
    system = build_system(config, env_factory=make_env)
    system.begin()
    (actor,), seen = system.actors, []
    try:
        for _ in range(2):
            actor.act()
            seen += list(actor._noise.clone())
            actor.absorb()
        assert len(seen) == 6 and all(not torch.equal(x, y) for i, x in enumerate(seen) for y in seen[:i])
        assert not actor.log_mu.any()  # given its noise, an action has the probability 1
    finally:
        system.close()


@pytest.mark.parametrize("env", ["Pendulum-v1", "tests.test_actions:Switches"])
def test_other_actions_than_a_single_choice_are_refused(env, tmp_path):
    sentence = "head 'categorical' is for a single discrete action, not for .*; use 'dueling'"
    with pytest.raises(UserError, match=sentence):
        casa.train("rainbow", env, 100, run_dir=tmp_path / "run", quiet=True, env__vectorization="sync")
    other = {"agent__head": "dueling", "agent__targets": "n-step-expected-q", "env__vectorization": "sync"}
    casa.train("rainbow", env, 100, run_dir=tmp_path / "other", quiet=True, data__min_fill=40, **other)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"agent.head": "dueling"}, "agent.targets 'n-step-categorical' needs agent.head 'categorical', got 'dueling'"),
        ({"agent.support": (1.0, 1.0)}, r"agent.support \(1.0, 1.0\) must go from the smaller to the larger number"),
        ({"net.noise": 0.0}, "agent.behaviour 'greedy' explores by noise only, and net.noise is 0"),
        ({"agent.atoms": 1}, "agent.atoms must be an integer from 2 to 201, got 1"),
    ],
)
def test_what_does_not_go_together_is_said(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        make_config({"recipe": "rainbow", "preset": "classic", **changes})


@pytest.mark.parametrize("targets", ["n-step-q", "n-step-expected-q"])
def test_the_head_learns_from_other_targets_too(targets, tmp_path):
    made = run("rainbow", tmp_path / "run", **{"agent.targets": targets, "steps": 400})
    assert made.exists()
