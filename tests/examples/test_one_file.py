"""examples/casa_one_file.py agrees with the package, stays short, and learns CartPole."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from casa import heads, losses, targets

PATH = Path(__file__).parents[2] / "examples" / "casa_one_file.py"
spec = importlib.util.spec_from_file_location("casa_one_file", PATH)
one_file = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = one_file  # dataclasses look their module up
spec.loader.exec_module(one_file)

T, B, D, ACTIONS = 13, 5, 4, 3


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.fixture
def sequences():
    """Random off-policy sequences with ends of both kinds, in fp64; ratios on both sides of the clips."""
    rng = torch.Generator().manual_seed(3)
    ends = torch.rand(T, B, generator=rng) < 0.25
    terminated = ends & (torch.rand(T, B, generator=rng) < 0.5)
    assert terminated.any() and (ends & ~terminated).any()
    return {
        "obs": torch.randn(T + 1, B, D, generator=rng, dtype=torch.float64),
        "actions": torch.randint(ACTIONS, (T, B), generator=rng),
        "log_mu": -2 * torch.rand(T, B, generator=rng, dtype=torch.float64),
        "rewards": torch.randn(T, B, generator=rng, dtype=torch.float64),
        "terminated": terminated,
        "ends": ends,
        "valid": torch.cat([torch.ones(1, B, dtype=torch.bool), ~ends[:-1]]),
    }


def test_it_imports_nothing_of_casa_and_is_at_most_250_lines():
    text = PATH.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert "import casa" not in text and "from casa" not in text


@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0, 3.0])
def test_the_head_and_its_gradients_are_the_packages(tau):
    rng = torch.Generator().manual_seed(1)
    advantage = tau * torch.randn(7, B, ACTIONS, generator=rng, dtype=torch.float64)
    value = torch.randn(7, B, generator=rng, dtype=torch.float64)
    w_v, w_q, w_pi = (torch.randn(x.shape, generator=rng, dtype=torch.float64) for x in (value, advantage, advantage))
    gradients = []
    for head in (one_file.casa_head, heads.casa_head):
        inputs = advantage.clone().requires_grad_(), value.clone().requires_grad_()
        v, q, log_pi = head(*inputs, tau)
        # V and Q in one sum would hide a V whose gradient leaks through Q, so each output is differentiated alone.
        outputs = (v * w_v).sum(), (q * w_q).sum(), (log_pi * w_pi).sum()
        gradients.append([torch.autograd.grad(x, inputs, allow_unused=True, retain_graph=True) for x in outputs])
        gradients[-1].append((v.detach(), q.detach(), log_pi.detach()))
    for ours, theirs in zip(*gradients, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                close(a, b)


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.05, 1.05), (1.0, 0.9), (0.5, 2.0)])
def test_dr_trace_is_the_packages(sequences, rho_bar, c_bar):
    rng = torch.Generator().manual_seed(2)
    values, final, q_taken, log_rhos = torch.randn(4, T, B, generator=rng, dtype=torch.float64).requires_grad_()
    # V(sₜ₊₁) is the next row of `values`, but for ends and the last step
    next_values = torch.where(sequences["ends"], final, torch.cat([values[1:], final[-1:]]))
    discounts = 0.97 * ~sequences["terminated"]
    arguments = sequences["rewards"], discounts, values, next_values, q_taken, log_rhos, sequences["ends"]
    v_hat, q_hat = one_file.dr_trace(*arguments, rho_bar, c_bar)
    expected = targets.dr_trace(*arguments, rho_bar, c_bar)
    close(v_hat, expected.v)
    close(q_hat, expected.q)
    assert not v_hat.requires_grad and not q_hat.requires_grad


def test_dr_trace_without_a_check_on_ends_would_differ(sequences):
    """The data can tell the difference that the test above looks for."""
    values = sequences["rewards"].cos()
    discounts = 0.97 * ~sequences["terminated"]
    arguments = [sequences["rewards"], discounts, values, values.sin(), values.exp(), sequences["log_mu"]]
    v_hat, _ = one_file.dr_trace(*arguments, sequences["ends"], 1.05, 1.05)
    across, _ = one_file.dr_trace(*arguments, sequences["terminated"], 1.05, 1.05)
    assert (v_hat - across).abs().max() > 0.01


def test_the_loss_and_its_gradient_are_the_packages(sequences):
    torch.manual_seed(0)
    config = one_file.Config(tau=0.3, rho_bar=1.1, c_bar=0.9, w_v=0.7, w_q=2.0, w_pi=3.0)
    agent = one_file.Agent(D, ACTIONS, config.tau).double()
    with torch.no_grad():
        agent.advantage.weight.normal_()  # far from the uniform policy that it starts with
    loss, _ = one_file.casa_loss(agent, sequences, config)
    ours = torch.autograd.grad(loss, list(agent.parameters()))

    x = agent.trunk(sequences["obs"])
    v, q, log_pi = heads.casa_head(config.tau * agent.advantage(x), agent.value(x).squeeze(-1), config.tau)
    q_taken, log_pi_taken = (losses.taken(y[:-1], sequences["actions"]) for y in (q, log_pi))
    log_rhos = log_pi_taken - sequences["log_mu"]
    discounts = config.gamma * ~sequences["terminated"]
    target = targets.dr_trace(
        sequences["rewards"], discounts, v[:-1], v[1:], q_taken, log_rhos, sequences["ends"], 1.1, 0.9
    )
    mask, rhos = sequences["valid"], targets.clipped_ratios(log_rhos, 1.1)
    expected = 0.7 * losses.value_loss(v[:-1], target.v, mask).value
    expected = expected + 2.0 * losses.q_loss(q_taken, target.q, mask).value
    expected = expected + 3.0 * losses.policy_loss(log_pi_taken, target.q - v[:-1], 0.3, rhos, mask).value
    close(loss, expected)
    for a, b in zip(ours, torch.autograd.grad(expected, list(agent.parameters())), strict=True):
        close(a, b)


@pytest.mark.parametrize(("factor", "at_rest"), [(1 + 100 / 10, True), (1.0, False), (9.0, False)])
def test_critic_and_actor_rest_at_a_multiple_of_the_advantage(factor, at_rest):
    """A = (1 + w_π/w_q) A^π makes the expected gradient of w_q L_Q - w_π J zero, as the docstring says."""
    tau, w_q, w_pi = 0.3, 10.0, 100.0
    advantage = torch.tensor([0.1, -0.4, 0.3, 0.7], dtype=torch.float64, requires_grad=True)
    v, q, log_pi = one_file.casa_head(advantage, torch.tensor(2.0, dtype=torch.float64), tau)
    pi = log_pi.detach().exp()
    q_hat = v + (q.detach() - v) / factor  # an environment in which A is `factor` times A^π
    loss = (pi * (w_q * 0.5 * (q_hat - q) ** 2 - w_pi * tau * (q_hat - v) * log_pi)).sum()
    (gradient,) = torch.autograd.grad(loss, advantage)
    assert (gradient.abs().max() < 1e-12) == at_rest


class Counter(gym.Env):
    """Observes the steps since the reset; terminates after 3 or is truncated after 5, alternately; rewards 1, 2, ..."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        odd = self.episodes % 2 == 1
        return np.full(1, self.steps, np.float32), float(self.steps), odd and self.steps == 3, self.steps == 5, {}


def test_rollouts_mask_resets_and_tell_termination_from_truncation():
    gym.register("Counter-v0", Counter, disable_env_checker=True)
    config = one_file.Config(env="Counter-v0", num_envs=2, rollout=12)
    worker = one_file.Worker(config)
    agent = one_file.Agent(1, 2, config.tau)
    batch = worker.rollout(agent)
    assert batch["terminated"][:, 0].nonzero().flatten().tolist() == [2]
    assert batch["ends"][:, 0].nonzero().flatten().tolist() == [2, 8]
    assert (~batch["valid"][:, 0]).nonzero().flatten().tolist() == [3, 9]
    rewards = batch["rewards"][:, 0] / batch["rewards"][0, 0]
    torch.testing.assert_close(rewards, torch.tensor([1.0, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2]))
    assert list(worker.finished) == [6.0, 6.0, 15.0, 15.0]
    assert batch["obs"][:, 0, 0].argmax() == 9  # the final observation of the truncated episode is in its place
    with torch.no_grad():
        log_pi = agent(batch["obs"])[2][:-1]
    torch.testing.assert_close(log_pi.gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1), batch["log_mu"])


def test_running_moments_are_those_of_all_rows():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (1000, 2))
    moments = one_file.RunningMoments(2)
    for chunk in np.split(rows, [7, 100, 640]):
        moments.update(chunk)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-5)


@pytest.mark.slow
def test_cartpole_is_learned_and_not_without_a_learning_rate():
    config = one_file.Config(env="CartPole-v1", steps=50_000, seed=1)
    learned = one_file.train(config)[-1]["return"]
    control = one_file.train(replace(config, lr=0.0))[-1]["return"]
    assert learned > 150, learned
    assert control < 50, control  # random play has 22
