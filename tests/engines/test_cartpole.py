"""CartPole is solved by one recipe of each family: its greedy policy balances for 475 of 500 steps, on average."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from casa.config.load import make_config
from casa.engines.build import build_system
from casa.engines.loops import LOOPS

COMMON = {
    "preset": "laptop",
    "env": "CartPole-v1",
    "env.vectorization": "sync",
    "env.num_envs": 8,
    "net.hidden": 64,
    "agent.discount": 0.99,
    "agent.reward": "raw",
    "learner.weight_decay": 0,
    "steps": 150_000,
    "device": "cpu",
}
# Returns are near 100 here, not near 1 as in Atari: the temperature of the policy gradient's heads is in proportion.
ON_POLICY = {"agent.tau": 1.0, "data.seq_len": 32, "learner.publish_every": 1, "learner.pull_every": 1}
FAMILIES = {
    "ppo-casa": {**ON_POLICY, "agent.lam": 0.95},
    "casa": {**ON_POLICY, "agent.c_bar": 1.0},
    "r2d2-casa": {
        "data.seq_len": 10,
        "data.batch": 16,
        "data.reuse": 8,
        "data.min_fill": 1000,
        "data.replay_frames": 20_000,
        "learner.warmup": 50,
        "learner.publish_every": 4,
        "learner.pull_every": 4,
        "learner.target_period": 50,
    },
}


@torch.no_grad()
def greedy_return(network, episodes=20):
    """Mean return of first episodes under argmax π."""
    envs = gym.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="sync")
    obs, _ = envs.reset(seed=999)
    total, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        out, _ = network(torch.as_tensor(obs).unsqueeze(0))
        obs, rewards, terminated, truncated, _ = envs.step(out.log_pi[0].argmax(-1).numpy())
        total += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return total.mean()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", list(FAMILIES))
def test_cartpole_is_solved(recipe):
    system = build_system(make_config({**COMMON, "recipe": recipe, **FAMILIES[recipe]}))
    system.begin()
    untrained, seen, due = greedy_return(system.network), [], 10_000
    for _ in LOOPS["sync"](system):
        if system.steps >= due:
            due += 10_000
            seen.append(greedy_return(system.network))
            if seen[-1] >= 475:
                break
    system.close()
    assert untrained < 150
    assert seen[-1] >= 475, f"greedy returns every 10,000 steps: {seen}"
