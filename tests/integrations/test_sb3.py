"""An unmodified PPO with CasaPolicy follows exactly α1 L_V + α2 L_Q - J, computed here from casa.losses."""

import itertools
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from casa.diagnostics import gradient_angles
from casa.errors import UserError
from casa.heads import HeadOutput, casa_head
from casa.integrations.sb3 import CasaPolicy
from casa.losses import policy_loss, ppo_loss, q_loss, taken, value_loss

OBS = spaces.Box(-1, 1, (4,))


class Shared(BaseFeaturesExtractor):
    """Features that actor and critic share, so that the gradients of V, Q and log π meet."""

    def __init__(self, observation_space, width=16):
        super().__init__(observation_space, width)
        self.net = nn.Sequential(nn.Linear(observation_space.shape[0], width), nn.Tanh())

    def forward(self, x):
        return self.net(x)


PAPER = {"v_weight": 0.5, "q_weight": 1.0}
SHARED = {"features_extractor_class": Shared, "net_arch": [8]}


def perturb(policy, scale):
    """Away from SB3's small first weights, where A is nearly 0. A/τ moves as much whatever τ is."""
    with torch.no_grad():
        for name, p in policy.named_parameters():
            p += scale * torch.randn_like(p) * (policy.tau if name.startswith("action_net") else 1)


def after_rollout(algorithm=PPO, *, policy_kwargs, **kwargs):
    """A model that has acted 64 times and changed since, so that π/μ is not 1; `train` makes one minibatch of it."""
    torch.manual_seed(7)
    if algorithm is PPO:
        kwargs |= {"batch_size": 64, "n_epochs": 1}
    # Rewards of 0.1: no loss is so large that the others would be lost in rounding.
    env = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 0.1 * reward)
    common = {"n_steps": 64, "max_grad_norm": 1e9, "seed": 0, "device": "cpu", "policy_kwargs": PAPER | policy_kwargs}
    model = algorithm(CasaPolicy, env, **common, **kwargs)
    perturb(model.policy, 0.3)
    _, callback = model._setup_learn(64)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 64)
    perturb(model.policy, 0.1)
    return model


def sb3_gradients(model):
    """What one call of SB3's own `train` leaves in the parameters."""
    model.policy.optimizer.step = lambda: None
    model.train()
    return [p.grad.clone() for p in model.policy.parameters()]


def outputs(policy, obs):
    """(A, V), by hand."""
    latent_pi, latent_vf = policy.mlp_extractor(policy.features_extractor(obs))
    return policy.action_net(latent_pi), policy.value_net(latent_vf).squeeze(-1)


def direct_gradients(model, weights=(0.5, 1.0, 1.0), tau_of_j=None, normalize=True, clip_v=None, clipped=True):
    """The gradients of α1 L_V + α2 L_Q - α3 J, from casa.losses."""
    policy, data = model.policy, next(model.rollout_buffer.get())
    tau, actions = policy.tau, data.actions.flatten()
    v, q, log_pi = casa_head(*outputs(policy, data.observations), tau)
    advantages = data.advantages
    if normalize:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    if clip_v:
        v = data.old_values + (v - data.old_values).clamp(-clip_v, clip_v)
    if tau_of_j is None:
        tau_of_j = tau
    if clipped:
        j = ppo_loss(taken(log_pi, actions), data.old_log_prob, advantages, clip=0.2, tau=tau_of_j)
    else:
        j = policy_loss(taken(log_pi, actions), advantages, tau=tau_of_j)
    loss_v, loss_q = value_loss(v, data.returns), q_loss(taken(q, actions), data.returns)
    loss = weights[0] * loss_v.value + weights[1] * loss_q.value + weights[2] * j.value
    return torch.autograd.grad(loss, list(policy.parameters()))


def difference(found, expected):
    """max |found - expected| over all parameters, relative to the largest expected entry."""
    largest = max(g.abs().max() for g in expected)
    return float(max((a - b).abs().max() for a, b in zip(found, expected, strict=True)) / largest)


@pytest.mark.parametrize("network", [{}, SHARED])
@pytest.mark.parametrize("tau", [0.1, 1.0, 3.0])
def test_ppo_follows_the_three_losses(network, tau):
    model = after_rollout(policy_kwargs={"tau": tau, **network})
    found = sb3_gradients(model)
    assert 0.05 < model.logger.name_to_value["train/clip_fraction"] < 0.95
    assert difference(found, direct_gradients(model)) < 1e-5


def test_each_loss_is_needed():
    """Negative control: leave out L_V, L_Q, J or J's factor τ, and the gradients are not those that SB3 followed."""
    model = after_rollout(policy_kwargs={"tau": 0.5, **SHARED})
    found = sb3_gradients(model)
    for weights in ((0, 1, 1), (0.5, 0, 1), (0.5, 1, 0), (1, 1, 1)):
        assert difference(found, direct_gradients(model, weights)) > 0.01, weights
    assert difference(found, direct_gradients(model, tau_of_j=1.0)) > 0.01


def test_the_residual_of_l_q_is_not_that_of_l_v():
    """Negative control: V with the gradient of α1 V + α2 Q, which follows (V^ - V) ∇Q, is another gradient."""
    model = after_rollout(policy_kwargs={"tau": 0.5, **SHARED})
    evaluate = model.policy.evaluate_actions

    def straight_through(obs, actions):
        values, log_prob, entropy = evaluate(obs, actions)
        v, q = values.as_subclass(torch.Tensor).flatten(), values.critic.q
        values.critic.used = True
        return v.detach() + 0.5 * (v - v.detach()) + (q - q.detach()), log_prob, entropy

    exact = sb3_gradients(model)
    model.policy.evaluate_actions = straight_through
    assert difference(sb3_gradients(model), exact) > 0.01


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"vf_coef": 0.2}, {"weights": (0.2, 0.4, 1.0)}),  # both scale with vf_coef / 0.5
        ({"normalize_advantage": False}, {"normalize": False}),
        ({"clip_range_vf": 0.1}, {"clip_v": 0.1}),
    ],
)
def test_settings_of_ppo_keep_their_meaning(settings, expected):
    model = after_rollout(policy_kwargs={"tau": 0.5, **SHARED}, **settings)
    found = sb3_gradients(model)
    assert difference(found, direct_gradients(model, **expected)) < 1e-5
    assert difference(found, direct_gradients(model)) > 0.01


def test_weights_of_the_losses():
    model = after_rollout(policy_kwargs={"tau": 0.5, "v_weight": 2.0, "q_weight": 0.25, **SHARED})
    assert difference(sb3_gradients(model), direct_gradients(model, (2.0, 0.25, 1.0))) < 1e-5


def test_without_l_q_at_tau_1_it_is_ppo():
    """A reduction: softmax(A) is SB3's own policy, so q_weight=0 gives the gradients of its MlpPolicy."""
    model = after_rollout(policy_kwargs={"tau": 1.0, "v_weight": 1.0, "q_weight": 0.0})
    found = sb3_gradients(model)
    own = ActorCriticPolicy(model.observation_space, model.action_space, lambda _: 1e-3)
    own.load_state_dict(model.policy.state_dict())
    model.policy = own
    assert difference(found, sb3_gradients(model)) < 1e-6


def test_a2c_follows_the_three_losses():
    model = after_rollout(A2C, policy_kwargs={"tau": 0.5, **SHARED})
    found = sb3_gradients(model)
    assert difference(found, direct_gradients(model, normalize=False, clipped=False)) < 1e-5


def test_separate_feature_extractors():
    policy = make_policy(spaces.Discrete(3), share_features_extractor=False, **SHARED)
    obs, actions, returns = torch.randn(8, 4), torch.randint(3, (8,)), torch.randn(8)
    values, _, _ = policy.evaluate_actions(obs, actions)
    found = torch.autograd.grad(F.mse_loss(returns, values.flatten()), list(policy.parameters()), allow_unused=True)
    v, q = policy.predict_values(obs).flatten(), taken(policy.q_values(obs), actions)
    loss = value_loss(v, returns).value + 2 * q_loss(q, returns).value
    expected = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    assert difference([g for g in found if g is not None], [g for g in expected if g is not None]) < 1e-5


def make_policy(action_space, **kwargs):
    torch.manual_seed(0)
    policy = CasaPolicy(OBS, action_space, lambda _: 1e-3, **PAPER | kwargs)
    perturb(policy, 0.3)
    return policy


@pytest.mark.parametrize("tau", [0.3, 1.0])
@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)])
def test_several_action_dimensions_are_casa_on_the_joint_action(space, tau):
    """Q, log π and all gradients equal those of `casa_head` over every combination, with A(a) = Σ_k A_k(a_k)."""
    policy = make_policy(space, tau=tau, **SHARED)
    obs, returns = torch.randn(32, 4), torch.randn(32)
    sizes = space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) else [2] * space.n
    joint = torch.tensor(list(itertools.product(*map(range, sizes))))  # [combinations, K]
    index = torch.randint(len(joint), (32,))
    parameters = list(policy.parameters())

    values, log_prob, entropy = policy.evaluate_actions(obs, joint[index].float())
    found = torch.autograd.grad(F.mse_loss(returns, values.flatten()) + log_prob.mean(), parameters)

    advantage, value = outputs(policy, obs)
    if isinstance(space, spaces.MultiBinary):
        each = joint * advantage.unsqueeze(1)  # [N, combinations, K]
    else:
        offsets = torch.tensor([0, *np.cumsum(sizes)[:-1]])
        each = advantage[:, joint + offsets]
    v, q, log_pi = casa_head(each.sum(-1), value, tau)
    log_pi_taken = taken(log_pi, index)
    loss = value_loss(v, returns).value + 2 * q_loss(taken(q, index), returns).value + tau * log_pi_taken.mean()
    assert difference(found, torch.autograd.grad(loss, parameters)) < 1e-5
    torch.testing.assert_close(log_prob, log_pi_taken)
    torch.testing.assert_close(entropy, -(log_pi.exp() * log_pi).sum(-1))


def test_chi_is_one():
    """∇Q(s, a) and ∇log π(a|s) point the same way in every state; without sg(V) they do not."""
    policy = make_policy(spaces.Discrete(3), tau=0.5, **SHARED)
    obs, actions, target = torch.randn(64, 4), torch.randint(3, (64,)), torch.randn(64)

    def casa():
        log_pi = policy.get_distribution(obs).distribution.logits
        return HeadOutput(policy.predict_values(obs).squeeze(-1), policy.q_values(obs), log_pi)

    def without_stop():
        v, q, log_pi = casa()
        return HeadOutput(v, q - v.detach().unsqueeze(-1) + v.unsqueeze(-1), log_pi)

    assert gradient_angles(policy, casa, actions, target, target).chi == pytest.approx(1, abs=1e-5)
    assert gradient_angles(policy, without_stop, actions, target, target).chi < 0.95


def test_the_q_of_the_loss_is_q_values():
    policy = make_policy(spaces.Discrete(3), tau=0.5)
    obs, actions = torch.randn(16, 4), torch.randint(3, (16,))
    values, log_prob, _ = policy.evaluate_actions(obs, actions)
    assert isinstance(values, torch.Tensor) and values.shape == (16, 1)
    torch.testing.assert_close(values.critic.q, taken(policy.q_values(obs), actions))
    pi = policy.get_distribution(obs).distribution.probs
    torch.testing.assert_close((pi * policy.q_values(obs)).sum(-1), policy.predict_values(obs).squeeze(-1))
    assert torch.equal(log_prob, policy.get_distribution(obs).log_prob(actions))


def test_a_loss_that_would_leave_out_l_q_is_refused():
    policy = make_policy(spaces.Discrete(3))
    values, _, _ = policy.evaluate_actions(torch.randn(8, 4), torch.randint(3, (8,)))
    with pytest.raises(UserError, match="mse_loss"):
        (torch.zeros(8) - values.flatten()).square().mean().backward()


def test_box_actions_are_refused():
    with pytest.raises(UserError, match="Discrete, MultiDiscrete or MultiBinary"):
        PPO(CasaPolicy, "Pendulum-v1", device="cpu")


@pytest.mark.parametrize("wrong", [{"tau": 0.0}, {"tau": -1.0}, {"q_weight": -1.0}, {"v_weight": -0.1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        make_policy(spaces.Discrete(3), **wrong)


def test_without_stable_baselines3_the_import_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "casa.integrations.sb3")
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.distributions", None)
    with pytest.raises(ImportError, match=r"pip install 'casa-rl\[sb3\]'"):
        import casa.integrations.sb3  # noqa: F401


def test_save_and_load(tmp_path):
    model = PPO(CasaPolicy, "CartPole-v1", n_steps=32, batch_size=32, policy_kwargs={"tau": 0.3}, device="cpu")
    model.learn(64)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=model.env, device="cpu")
    model.policy.save(tmp_path / "policy")
    policy = CasaPolicy.load(tmp_path / "policy", device="cpu")
    obs = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
    for other in (loaded.policy, policy):
        assert other.tau == 0.3
        assert torch.equal(other.q_values(torch.tensor(obs)), model.policy.q_values(torch.tensor(obs)))
        assert np.array_equal(other.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    loaded.learn(64)


@pytest.mark.parametrize(
    ("space", "extractor"),
    [
        (spaces.Box(0, 255, (1, 36, 36), np.uint8), "NatureCNN"),
        (spaces.Dict({"a": OBS}), "CombinedExtractor"),
        (OBS, "FlattenExtractor"),
    ],
)
def test_the_features_extractor_fits_the_observations(space, extractor):
    policy = CasaPolicy(space, spaces.Discrete(2), lambda _: 1e-3)
    assert type(policy.features_extractor).__name__ == extractor
    sample = space.sample()
    batch, _ = policy.obs_to_tensor({"a": sample["a"][None]} if isinstance(sample, dict) else sample[None])
    assert policy.q_values(batch).shape == (1, 2)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "integrations.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code.replace("100_000", "2048"), {})
    assert (tmp_path / "cartpole.zip").exists()


def train_on_cartpole(learning_rate, steps, seed=1):
    """Mean return of the last 20 episodes; settings of RL Zoo for this environment."""
    env = VecNormalize(make_vec_env("CartPole-v1", 8, seed=seed), norm_obs=False)
    rollout = {"n_steps": 32, "gamma": 0.98, "gae_lambda": 0.8}
    update = {"learning_rate": learning_rate, "batch_size": 256, "n_epochs": 20}
    model = PPO(CasaPolicy, env, **rollout, **update, seed=seed, device="cpu").learn(steps)
    return np.mean([episode["r"] for episode in model.ep_info_buffer][-20:])


@pytest.mark.slow
def test_ppo_learns_cartpole():
    """A random policy has a return of 22, the best possible is 500."""
    assert train_on_cartpole(1e-3, 25_000) > 150
    assert train_on_cartpole(0.0, 5_000) < 40
