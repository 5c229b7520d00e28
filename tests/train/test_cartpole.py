"""One recipe of each family solves CartPole-v1: its greedy policy balances 475 steps or more, on fresh episodes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from small import one_thread  # noqa: F401

from casa.config import make_config
from casa.train.loops import LOOPS
from casa.train.system import System

SOLVED = 475
COMMON = {
    "preset": "paper",
    "device": "cpu",
    "env": "CartPole-v1",
    "env.vectorization": "sync",
    "env.num_envs": 16,
    "agent.reward": "raw",
    "agent.discount": 0.98,
    "net.hidden": 64,
    "net.lstm": 0,
    "data.burn_in": 0,
    "data.batch": 4,
    "data.reuse": 4,
    "learner.lr": 2e-3,
    "learner.warmup": 20,
    "learner.weight_decay": 0,
    "learner.publish_every": 1,
    "learner.pull_every": 1,
    "steps": 150_000,
}
FAMILIES = {
    "ppo-casa": {"data.seq_len": 32, "agent.tau": 1},
    # n steps without correction want little noise in the actions; one step wants a young target network.
    "r2d2": {
        "data.seq_len": 8,
        "data.batch": 16,
        "data.reuse": 8,
        "data.min_fill": 500,
        "data.replay_frames": 40_000,
        "agent.discount": 0.99,
        "agent.n_step": 1,
        "agent.epsilon_base": 0.1,
        "agent.epsilon_range": (1, 2),
        "learner.target_period": 10,
        "steps": 60_000,
    },
    "casa": {"data.seq_len": 20, "steps": 100_000},
}


def greedy_return(network, episodes=20):
    """Mean return of argmax π over fresh episodes, with the seeds of none that it was trained on."""
    env = gym.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="sync")
    obs, _ = env.reset(seed=10**6)
    total, alive = np.zeros(episodes), np.ones(episodes, bool)
    while alive.any():
        with torch.no_grad():
            out, _ = network(torch.as_tensor(obs)[None])
        obs, rewards, terminated, truncated, _ = env.step(out.log_pi[0].argmax(-1).numpy())
        total += rewards * alive
        alive &= ~(terminated | truncated)
    return total.mean()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", FAMILIES)
def test_cartpole_is_solved(recipe):
    system = System(make_config({**COMMON, **FAMILIES[recipe], "recipe": recipe}))
    assert greedy_return(system.network) < 200  # it does not come for nothing
    system.begin()
    returns, evaluate_at = [], 8000
    for _ in LOOPS["sync"](system):
        if system.steps >= evaluate_at:
            evaluate_at += 4000
            returns.append(greedy_return(system.network))
            if returns[-1] >= SOLVED:
                return
    pytest.fail(f"not solved in {system.steps:,} steps: {returns}")
