"""Evaluation of a trained agent on exactly N new episodes, without bias towards short ones.

Episodes are played in rounds. In a round every environment is reset with its own seed and plays one episode; the round
ends with its last episode. So it is fixed in advance which episodes count. Counting the first N to finish, with
automatic resets, would be biased towards short episodes: long ones are still running when the count is reached.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from casa import __version__, atari57
from casa.envs import make_env
from casa.envs.types import EnvSpec, Flags, VecEnv, env_seeds
from casa.errors import UserError, unknown
from casa.rollout.behaviour import BEHAVIOURS
from casa.run.agent import EPSILON, Agent
from casa.runtime.seeds import seed_for

MODES = ("greedy", "sampled")
RESAMPLES = 10_000
TRACE_BASE = np.uint64(6364136223846793005)  # Knuth's multiplier, of a polynomial hash modulo 2⁶⁴
Returns = npt.NDArray[np.float64]
Report = Callable[[str, int, int], None]
"""(mode, finished episodes, steps so far); called after every step."""


class Played(NamedTuple):
    """Per episode: raw return, length in agent steps, whether truncated, hash of its first observation and actions."""

    returns: Returns
    lengths: npt.NDArray[np.int64]
    truncated: Flags
    traces: npt.NDArray[np.uint64]


def evaluate(
    agent: Agent,
    episodes: int = 30,
    modes: Sequence[str] = MODES,
    seed: int = 0,
    num_envs: int = 0,
    report: Report = lambda mode, over, steps: None,
    env_factory: Callable[..., VecEnv] = make_env,
) -> dict[str, Any]:
    """Play `episodes` in each mode; returns the settings, statistics and raw data, ready for JSON.

    greedy: argmax π, or the mean of a smooth density; sampled: a ~ π. For agents trained ε-greedily: argmax Q, and
    ε-greedy with ε = 0.001. A noisy network has noise in the second mode only. Both modes use the same start seeds. The
    environments are those of the run, with its
    protocol and raw rewards, at most `num_envs` in parallel (0: as many as in training). Their seeds depend on the
    run's seed and on `seed`, and differ from those of training. Every episode is truncated after env.max_frames; its
    return so far counts.
    """
    for mode in modes:
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0), ("num_envs", num_envs, 0)):
        if value < least:
            raise UserError(f"{name} must be >= {least}, got {value}")
    config, spec = agent.config, agent.spec
    rounds = -(-episodes // (num_envs or config.env.num_envs))
    width = -(-episodes // rounds)  # equal rounds, so that the last one is not nearly empty
    seeds = [seed_for(config.seed, "evaluation starts", seed, i) for i in range(rounds)]
    cap = -(-config.env.max_frames // spec.frames_per_step)
    env = env_factory(config.env, width, seeds[0])
    try:
        _check_same(env.spec, spec)
        results = {}
        for mode in modes:
            agent.seed(seed_for(config.seed, "evaluation actions", seed))
            began = time.perf_counter()
            played = play(agent, env, episodes, seeds, cap, mode == "greedy", lambda *at, m=mode: report(m, *at))
            results[mode] = {
                "policy": _policy(agent, mode),
                **summarize(played, spec),
                "seconds": time.perf_counter() - began,
            }
    finally:
        env.close()
    game = spec.atari_game
    return {
        "casa": __version__,
        "recipe": config.recipe,
        "env": spec.id,
        "checkpoint": None if agent.path is None else str(agent.path),
        "step": agent.step,
        "frames": agent.step * spec.frames_per_step,
        "episodes": episodes,
        "num_envs": width,
        "tau": agent.network.tau if agent.tempered else None,
        "seed": seed,
        "seeds": [env_seeds(word, width) for word in seeds],
        "max_steps": cap,
        "modes": results,
        "reference": None if game is None else atari57.reference(game)._asdict(),
        "config": dataclasses.asdict(config),
    }


def play(
    agent: Agent,
    env: VecEnv,
    episodes: int,
    seeds: Sequence[int],
    cap: int,
    deterministic: bool,
    report: Callable[[int, int], None] = lambda over, steps: None,
) -> Played:
    """Play `episodes` episodes of at most `cap` steps: for each seed, one episode per environment.

    Steps after the end of an environment's episode (a dummy step, or the next episode) are ignored, so every kind of
    automatic reset gives the same result.
    """
    width, device = env.spec.num_envs, agent.device
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    truncated, traces = np.zeros(episodes, np.bool_), np.zeros(episodes, np.uint64)
    steps = 0
    for first, seed in zip(range(0, episodes, width), seeds, strict=True):
        playing = np.arange(min(width, episodes - first))  # environments whose episode is not over
        state = agent.network.initial_state(len(playing), device)
        actions = torch.zeros(width, *env.spec.actions.flat_shape, dtype=env.spec.actions.acting_dtype).numpy()
        obs = env.reset(seed)
        traces[first + playing] = [zlib.crc32(obs[i].tobytes()) for i in playing]
        while playing.size:
            acted, state, _ = agent.act(torch.as_tensor(obs[playing]).to(device), state, None, deterministic)
            actions[playing] = acted.cpu().numpy()
            env.send(actions)
            step = env.recv()
            obs, row = step.obs, first + playing
            returns[row] += step.rewards[playing]
            lengths[row] += 1
            for part in _words(actions[playing]):
                traces[row] = traces[row] * TRACE_BASE + part
            ended = step.terminated[playing] | step.truncated[playing] | (lengths[row] >= cap)
            truncated[row] = ended & ~step.terminated[playing]
            playing, state = playing[~ended], state[torch.as_tensor(~ended, device=device)]
            steps += row.size
            report(first + min(width, episodes - first) - playing.size, steps)
    return Played(returns, lengths, truncated, traces)


def _words(actions: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Actions [n, ...] as integers [parts, n] to hash; floats by their bits."""
    rows = actions.reshape(len(actions), -1).T
    return (np.ascontiguousarray(rows).view(np.uint32) if rows.dtype == np.float32 else rows).astype(np.uint64)


def summarize(played: Played, spec: EnvSpec) -> dict[str, Any]:
    """Mean with its uncertainty, median, extremes, lengths; HNS and SABER of the mean for Atari games; raw data.

    `different`: number of distinct episodes, by first observation and actions. Greedy play in a deterministic game has
    few; the interval then shows only how the mean varies with the starts, and does not hold beyond these episodes.
    """
    returns, lengths = played.returns, played.lengths
    mean = float(returns.mean())
    game = spec.atari_game
    return {
        "mean": mean,
        "standard_error": float(returns.std(ddof=1) / len(returns) ** 0.5) if len(returns) > 1 else None,
        "interval": bootstrap_interval(returns),
        "median": float(np.median(returns)),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "hns": None if game is None else atari57.hns(game, mean),
        "saber": None if game is None else atari57.saber(game, mean),
        "length_mean": float(lengths.mean()),
        "length_min": int(lengths.min()),
        "length_max": int(lengths.max()),
        "truncated": int(played.truncated.sum()),
        "different": len(set(zip(returns, lengths, played.traces, strict=True))),
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
        "episode_truncated": played.truncated.tolist(),
    }


def bootstrap_interval(values: Returns, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Quantiles (1 ∓ level)/2 of mean(x*) over 10,000 resamples x*: n draws with replacement from the n values."""
    rng, count = np.random.default_rng(seed), len(values)
    at_once = max(1, 2**22 // count)  # resamples whose indices fit in 32 MiB
    sizes = [min(at_once, RESAMPLES - done) for done in range(0, RESAMPLES, at_once)]
    means = [values[rng.integers(count, size=(size, count))].mean(1) for size in sizes]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _policy(agent: Agent, mode: str) -> str:
    if BEHAVIOURS[agent.config.agent.behaviour].needs_q:
        greedy = mode == "greedy" or agent.config.agent.behaviour == "greedy"
        noisy = ", noisy network" if mode == "sampled" and agent.network.noise_size else ""
        return f"argmax Q{noisy}" if greedy else f"argmax Q, ε = {EPSILON}{noisy}"
    if mode == "greedy":
        return "E_π[a]" if agent.network.kernel is not None else "argmax π"
    tau = agent.network.tau
    return "a ~ π" if tau == agent.trained_tau else f"a ~ softmax(A / {tau:g})"


def _check_same(found: EnvSpec, trained: EnvSpec) -> None:
    for name in ("obs_shape", "obs_dtype", "actions"):
        now, then = getattr(found, name), getattr(trained, name)
        if now != then:
            raise UserError(f"{trained.id} has {name} {now} here, but the agent was trained with {then}")
