"""CASA with DR-Trace, all of it, top to bottom in one file: torch, numpy and gymnasium, and nothing of `casa`.

    pip install torch 'gymnasium[box2d]'
    python examples/casa_one_file.py                         # LunarLander-v3, 500,000 steps
    python examples/casa_one_file.py --env CartPole-v1 --steps 150_000 --csv curve.csv

1. One network. A shared trunk ends in two outputs, an advantage A(s, ·) and a value V(s). The advantage is critic
   and actor at once (sg is stop-gradient, π·A = Σₐ π(a) A(a)):

       π = softmax(A/τ)        Q = A - sg(π)·A + sg(V)

   Then ∇Q(s, a) = ∇A(s, a) - Σ π ∇A = τ ∇log π(a|s): evaluating the policy and improving it change the network
   along the same directions. Also π·Q = V, by construction.

2. Two targets. Data comes from an older policy μ, so every step carries the ratio π/μ, clipped at ρ̄ or at c̄:

       δₜ  = rₜ + γ V(sₜ₊₁) - Q(sₜ, aₜ)
       V^ₜ = V(sₜ) + ρₜ δₜ + γ cₜ (V^ₜ₊₁ - V(sₜ₊₁))        ρₜ = min(ρ̄, πₜ/μₜ), cₜ = min(c̄, πₜ/μₜ)
       Q^ₜ = rₜ + γ V^ₜ₊₁

   DR-Trace is doubly robust: π·Q = V predicts, ρδ corrects, and the better Q is the less variance ρ adds.
   A c̄ below 1 shortens the trace, as λ does in GAE.

3. One loss, L = w_v L_V + w_q L_Q - w_π J, where targets and ratios have no gradient:

       L_V = ½ E[(V^ - V)²]        L_Q = ½ E[(Q^ - Q)²]        J = τ E[ρ (Q^ - V) log π]

   L_Q alone has its minimum at A = A^π, and J alone would make π greedy. Together, on-policy, they come to rest at
   A = (1 + w_π/w_q) A^π: exploration has the temperature τ / (1 + w_π/w_q).

4. The scale. A temperature is an amount of return, so rewards are divided by the standard deviation of the return.

Sequences are time-major, [T, B]: T steps of B environments.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    env: str = "LunarLander-v3"
    steps: int = 500_000
    seed: int = 1
    num_envs: int = 64
    rollout: int = 32  # T, steps of each environment between updates
    epochs: int = 4  # how often each sequence is used; all but the first use are off-policy
    minibatch: int = 8  # sequences per gradient step
    lr: float = 1e-3  # decays linearly to 0
    gamma: float = 0.995
    tau: float = 0.02
    rho_bar: float = 1.05
    c_bar: float = 0.98
    w_v: float = 1.0
    w_q: float = 10.0
    w_pi: float = 100.0
    max_grad_norm: float = 0.5
    csv: str = ""  # write the learning curve here


def casa_head(advantage: Tensor, value: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """π = softmax(A/τ), Q = A - sg(π)·A + sg(V): from A [..., actions] and V [...] to (V, Q, log π)."""
    log_pi = torch.log_softmax(advantage / tau, -1)
    baseline = (log_pi.detach().exp() * advantage).sum(-1, keepdim=True)
    return value, advantage - baseline + value.detach().unsqueeze(-1), log_pi


@torch.no_grad()
def dr_trace(
    rewards: Tensor,  # rₜ of the transition sₜ → sₜ₊₁
    discounts: Tensor,  # γ, or 0 where that transition terminated
    values: Tensor,  # V(sₜ)
    next_values: Tensor,  # V(sₜ₊₁), of the final observation where the episode ended
    q_taken: Tensor,  # Q(sₜ, aₜ)
    log_rhos: Tensor,  # log π(aₜ|sₜ) - log μ(aₜ|sₜ)
    ends: Tensor,  # terminated or truncated: no trace crosses it
    rho_bar: float,
    c_bar: float,
) -> tuple[Tensor, Tensor]:
    """The targets V^ and Q^, [T, B] as all arguments are, by one pass from the last step to the first."""
    ratios = log_rhos.exp()
    corrections = ratios.clamp(max=rho_bar) * (rewards + discounts * next_values - q_taken)
    traces = discounts * ratios.clamp(max=c_bar)
    v_hat, q_hat = torch.empty_like(values), torch.empty_like(values)
    excess = torch.zeros_like(values[0])  # V^ₜ₊₁ - V(sₜ₊₁): 0 after the last step and after the end of an episode
    for t in reversed(range(len(rewards))):
        excess = torch.where(ends[t], 0.0, excess)
        q_hat[t] = rewards[t] + discounts[t] * (next_values[t] + excess)
        excess = corrections[t] + traces[t] * excess
        v_hat[t] = values[t] + excess
    return v_hat, q_hat


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int, tau: float) -> None:
        super().__init__()
        self.tau = tau
        self.trunk = nn.Sequential(layer(observations, 64, 2**0.5), nn.Tanh(), layer(64, 64, 2**0.5), nn.Tanh())
        self.advantage = layer(64, actions, 0.01)  # small: the first policy is uniform
        self.value = layer(64, 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(V [...], Q [..., actions], log π [..., actions]) of observations [..., D]."""
        x = self.trunk(obs)
        # The layer outputs A/τ: Adam's steps have one size for all layers, which dividing by a small τ would magnify.
        return casa_head(self.tau * self.advantage(x), self.value(x).squeeze(-1), self.tau)


def casa_loss(agent: Agent, batch: dict[str, Tensor], config: Config) -> tuple[Tensor, dict[str, float]]:
    """L and its parts for a batch of sequences: `obs` is [T + 1, B, D], all else [T, B]."""
    values, q, log_pi = agent(batch["obs"])
    v, next_v = values[:-1], values[1:]
    q_taken, log_pi_taken = (x[:-1].gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1) for x in (q, log_pi))

    # Each time that a sequence is used, π, V and Q are those of today: only μ is of the past.
    log_rhos = (log_pi_taken - batch["log_mu"]).detach()
    discounts, clips = config.gamma * ~batch["terminated"], (config.rho_bar, config.c_bar)
    v_hat, q_hat = dr_trace(batch["rewards"], discounts, v, next_v, q_taken, log_rhos, batch["ends"], *clips)
    rhos = log_rhos.exp().clamp(max=config.rho_bar)

    mean = batch["valid"].to(v.dtype) / batch["valid"].sum()  # weights of a mean over all steps but resets
    loss_v = 0.5 * (mean * (v_hat - v) ** 2).sum()
    loss_q = 0.5 * (mean * (q_hat - q_taken) ** 2).sum()
    j = config.tau * (mean * rhos * (q_hat - v.detach()) * log_pi_taken).sum()
    loss = config.w_v * loss_v + config.w_q * loss_q - config.w_pi * j
    entropy = -(mean * (log_pi.exp() * log_pi).sum(-1)[:-1]).sum()
    return loss, {"loss_v": loss_v.item(), "loss_q": loss_q.item(), "entropy": entropy.item()}


class RunningMoments:
    """Mean and standard deviation of all rows seen so far."""

    def __init__(self, *shape: int) -> None:
        self.count, self.mean, self.var = 1e-6, np.zeros(shape), np.ones(shape)

    def update(self, rows: np.ndarray) -> None:
        n, total = len(rows), self.count + len(rows)
        shift = rows.mean(0) - self.mean
        self.var = (self.count * self.var + n * rows.var(0) + shift**2 * self.count * n / total) / total
        self.mean, self.count = self.mean + shift * n / total, total
        self.std = np.sqrt(self.var) + 1e-8


class Worker:
    """Steps the environments: observations are normalised, rewards divided by the return's standard deviation."""

    def __init__(self, config: Config) -> None:
        # NEXT_STEP: the step that ends an episode returns its final observation; the next one ignores its action and
        # resets. So obs[t + 1] is always what came after obs[t], and steps that reset are marked as not valid.
        mode = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.config = config
        self.envs = gym.make_vec(config.env, config.num_envs, vectorization_mode="sync", vector_kwargs=mode)
        self.obs_moments = RunningMoments(*(self.envs.single_observation_space.shape or ()))
        self.return_moments = RunningMoments()
        self.obs = self.normalise(self.envs.reset(seed=config.seed)[0])
        self.ended = np.zeros(config.num_envs, bool)
        self.discounted, self.returns = np.zeros(config.num_envs), np.zeros(config.num_envs)
        self.finished: deque[float] = deque(maxlen=100)  # returns of the last episodes, in the environment's rewards

    def normalise(self, obs: np.ndarray) -> Tensor:
        self.obs_moments.update(obs)
        scaled = (obs - self.obs_moments.mean) / self.obs_moments.std
        return torch.as_tensor(scaled, dtype=torch.float32).clamp(-10, 10)

    @torch.no_grad()
    def rollout(self, agent: Agent) -> dict[str, Tensor]:
        """T steps of every environment, with log μ(aₜ|sₜ) of the policy that acts."""
        rows: list[tuple[Any, ...]] = []
        for _ in range(self.config.rollout):
            log_mu = agent(self.obs)[2]
            action = torch.multinomial(log_mu.exp(), 1)
            obs, reward, terminated, truncated, _ = self.envs.step(action.squeeze(-1).numpy())
            valid, ended = ~self.ended, terminated | truncated
            log_mu_taken = log_mu.gather(-1, action).squeeze(-1)
            rows.append((self.obs, action.squeeze(-1), log_mu_taken, reward, terminated, ended, valid))
            self.returns = valid * self.returns + reward
            self.discounted = valid * self.config.gamma * self.discounted + reward
            self.return_moments.update(self.discounted)
            self.finished.extend(self.returns[ended])
            self.obs, self.ended = self.normalise(obs), ended
        names = ("obs", "actions", "log_mu", "rewards", "terminated", "ends", "valid")
        batch = {name: torch.as_tensor(np.stack(xs)) for name, xs in zip(names, zip(*rows, strict=True), strict=True)}
        batch["obs"] = torch.cat([batch["obs"], self.obs.unsqueeze(0)])
        batch["rewards"] = (batch["rewards"] / float(self.return_moments.std)).float()
        return batch


def train(config: Config, log: bool = False) -> list[dict[str, float]]:
    """The learning curve, one row for every rollout."""
    torch.manual_seed(config.seed)
    worker = Worker(config)
    actions = int(worker.envs.single_action_space.n)  # type: ignore[attr-defined]
    agent = Agent(worker.obs.shape[-1], actions, config.tau)
    optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)
    curve: list[dict[str, float]] = []
    begin = logged = time.perf_counter()
    while not curve or curve[-1]["steps"] < config.steps:
        batch = worker.rollout(agent)
        steps = (len(curve) + 1) * config.rollout * config.num_envs
        optimizer.param_groups[0]["lr"] = config.lr * max(1 - steps / config.steps, 0.0)
        for _ in range(config.epochs):
            for columns in torch.randperm(config.num_envs).split(config.minibatch):
                loss, parts = casa_loss(agent, {name: x[:, columns] for name, x in batch.items()}, config)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
                optimizer.step()
        returns = float(np.mean(worker.finished)) if worker.finished else float("nan")
        now = time.perf_counter()
        curve.append({"steps": steps, "seconds": round(now - begin, 2), "return": returns, **parts})
        if log and (now > logged + 5 or steps >= config.steps):
            logged = now
            terms = "  ".join(f"{name} {x:.4f}" for name, x in parts.items())
            print(f"{steps:9,} steps  {steps / (now - begin):6,.0f}/s  return {returns:7.1f}  {terms}", flush=True)
    worker.envs.close()
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    config = Config(**vars(parser.parse_args()))
    torch.set_num_threads(1)  # the tensors are small
    curve = train(config, log=True)
    if config.csv:
        table = [list(row.values()) for row in curve]
        np.savetxt(config.csv, table, fmt="%.10g", delimiter=",", header=",".join(curve[0]), comments="")
    print(f"{config.env}, seed {config.seed}: mean return of the last 100 episodes {curve[-1]['return']:.1f}")


if __name__ == "__main__":
    main()
