"""The fields of a training run, their types and their ranges.

The fields that a recipe sets have no defaults here: `recipes.py` is their one source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from casa.envs.config import EnvConfig
from casa.errors import UserError
from casa.recipes import Behaviour, DataKind, HeadName, PolicyLoss, Preset, RewardShape, TargetsName

Backbone = Literal["auto", "impala-shallow", "impala-deep", "nature", "grid", "mlp"]
Choice = Literal["auto", "yes", "no"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What is learned: head, targets, gradient, behaviour."""

    head: HeadName
    """Function approximation."""
    targets: TargetsName
    """Estimator of V^ and Q^."""
    weights: tuple[float, float, float]
    """Weights of L_V, L_Q and J."""
    policy_loss: PolicyLoss
    """J as score function, as PPO's clipped surrogate, or none."""
    entropy_cost: float
    """Weight of the policy's entropy."""
    behaviour: Behaviour
    """How actions are taken in the environment."""
    tau: float
    """Temperature of the policy, for heads with advantages."""
    discount: float
    reward: RewardShape
    """clip01: clip(r, 0, 1); log: log(|r| + 1) x (2 if r >= 0 else -1)."""
    value_rescale: bool
    """n-step-q targets through h."""
    lam: float
    """Lambda of gae."""
    clip: float
    """PPO's clip epsilon."""
    rho_bar: float
    """Clip of the importance ratio of traces."""
    c_bar: float
    """Clip of the trace coefficient."""
    n_step: int
    """Steps of n-step-q."""
    epsilon_base: float
    """Epsilon of an environment is base^u ..."""
    epsilon_range: tuple[float, float]
    """... with u uniform on this range."""


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """The network."""

    backbone: Backbone
    """auto: mlp for vectors, grid for grids, the recipe's for images."""
    lstm: int
    """LSTM units, 0 = none."""
    hidden: int
    """Width of the backbone's features and of each head's first layer."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data a learner step sees."""

    kind: DataKind
    reuse: int
    """How often a sample is used, on average."""
    burn_in: int
    """Steps before the sequence, unrolled from the stored state without gradient or loss."""
    seq_len: int
    """Steps of a sequence."""
    batch: int
    """Sequences a learner step."""
    replay_frames: int
    """Frames in the buffer of prioritized replay."""
    min_fill: int
    """Frames in that buffer before learning starts."""
    priority_exponent: float
    importance_exponent: float
    eta: float
    """Priority of a sequence is eta max|error| + (1 - eta) mean|error|."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The optimizer, and the exchange of weights."""

    lr: float
    """Peak rate: linear up over the warm-up, then linear to 0."""
    warmup: int
    """Learner steps."""
    betas: tuple[float, float]
    adam_eps: float
    weight_decay: float
    """Linear to 0."""
    clip_norm: float
    target_period: int
    """Learner steps between copies into the target network."""
    publish_every: int
    """Learner steps between publications of the weights."""
    pull_every: int
    """Steps of an environment between pulls of the weights."""
    max_bad_steps: int = 10
    """Non-finite learner steps in a row after which the run stops."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What is written while training."""

    every_seconds: float = 5.0
    """Between plain lines when the output is piped."""
    every_steps: int = 10_000
    """Agent steps between rows of metrics.jsonl."""
    tensorboard: Choice = "auto"
    """auto: when it is installed."""
    wandb: bool = False
    angles_every: int = 0
    """Learner steps between gradient angles, 0 = off."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is saved while training."""

    every_seconds: float = 120.0
    """Between checkpoints, where every_steps is 0."""
    every_steps: int = 0
    """Agent steps between checkpoints; 0: by the clock."""
    keep: int = 3
    """Newest checkpoints kept, beside the best."""
    replay: Choice = "auto"
    """Save the data; auto: a replay buffer of up to 256 MiB, and where exact is set."""
    exact: bool = False
    """A run that is killed and resumed equals one that never was, to the bit, on a CPU; every checkpoint cuts all
    running episodes."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run."""

    recipe: str
    """Name of the agent, see casa recipes."""
    preset: Preset
    """The paper's tables as printed, or the same recipe scaled to minutes on a GPU (CASA family), or to two cores."""
    env: EnvConfig
    steps: int
    """Agent steps; 1_000_000 and 1e6 are read too."""
    seed: int = 0
    run_dir: str = ""
    """Where everything is written; empty: runs/RECIPE-ENVIRONMENT-SEED."""
    device: Device = "auto"
    mode: Literal["auto", "sync", "async"] = "auto"
    """sync is deterministic to the bit; async overlaps emulation, inference and learning."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Choice = "auto"
    """Fuse the kernels of backbone and core with torch.compile; auto: deep networks in the async loop on CUDA."""
    agent: AgentConfig
    net: NetConfig
    data: DataConfig
    learner: LearnerConfig
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def validate(self) -> None:
        """Raise UserError for the first field that is out of range or does not go with the others."""
        for name, (text, holds) in RANGES.items():
            value = attrgetter(name)(self)
            for number in value if isinstance(value, tuple) else (value,):
                if not (math.isfinite(number) and holds(number)):
                    raise UserError(f"{name} must be {text}, got {number:g}")
        for sentence in _conflicts(self):
            raise UserError(sentence)


_POSITIVE = ("> 0", lambda x: x > 0)
_NOT_NEGATIVE = (">= 0", lambda x: x >= 0)
_AT_LEAST_ONE = (">= 1", lambda x: x >= 1)
_FRACTION = ("between 0 and 1", lambda x: 0 <= x <= 1)
_TEMPERATURE = ("from 1e-06 to 1e+06", lambda x: 1e-6 <= x <= 1e6)  # beyond, greedy or uniform for sure
_BELOW_ONE = ("at least 0 and below 1", lambda x: 0 <= x < 1)

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "agent.tau": _TEMPERATURE,
    **dict.fromkeys(("agent.rho_bar", "agent.c_bar", "agent.epsilon_range"), _POSITIVE),
    **dict.fromkeys(("learner.lr", "learner.adam_eps", "learner.clip_norm", "log.every_seconds"), _POSITIVE),
    "checkpoint.every_seconds": _POSITIVE,
    **dict.fromkeys(("agent.weights", "agent.entropy_cost", "agent.clip"), _NOT_NEGATIVE),
    **dict.fromkeys(("data.burn_in", "data.min_fill", "net.lstm", "seed", "checkpoint.every_steps"), _NOT_NEGATIVE),
    **dict.fromkeys(("learner.weight_decay", "learner.warmup", "log.angles_every"), _NOT_NEGATIVE),
    **dict.fromkeys(("data.priority_exponent", "data.importance_exponent"), _NOT_NEGATIVE),
    **dict.fromkeys(("steps", "agent.n_step", "net.hidden", "data.reuse"), _AT_LEAST_ONE),
    **dict.fromkeys(("data.seq_len", "data.batch", "data.replay_frames", "log.every_steps"), _AT_LEAST_ONE),
    **dict.fromkeys(("checkpoint.keep", "learner.max_bad_steps"), _AT_LEAST_ONE),
    **dict.fromkeys(("learner.target_period", "learner.publish_every", "learner.pull_every"), _AT_LEAST_ONE),
    **dict.fromkeys(("agent.discount", "agent.lam", "agent.epsilon_base", "data.eta"), _FRACTION),
    "learner.betas": _BELOW_ONE,
}
"""Field -> (its range in words, whether a number is in it), for every number; `EnvConfig` checks its own."""


def _conflicts(config: RunConfig) -> Iterator[str]:
    agent, data = config.agent, config.data
    if agent.head == "actor-critic":
        if agent.weights[1] > 0:
            yield f"agent.weights {agent.weights} trains Q, but the actor-critic head has none; use 0 for L_Q"
        if agent.targets not in ("gae", "vtrace"):
            yield f"agent.targets {agent.targets!r} needs Q, but the actor-critic head has none; use 'vtrace'"
        if agent.behaviour == "epsilon-greedy":
            yield "agent.behaviour 'epsilon-greedy' needs Q, but the actor-critic head has none; use 'sample'"
    if agent.policy_loss == "none" and agent.weights[2] > 0:
        yield f"agent.policy_loss 'none' leaves nothing to weigh by {agent.weights[2]:g}; use 'score'"
    if not any(agent.weights):
        yield "agent.weights are all 0: nothing is trained; set at least one above 0"
    if agent.epsilon_range[0] > agent.epsilon_range[1]:
        yield f"agent.epsilon_range {agent.epsilon_range} must go from the smaller to the larger number"
    if config.checkpoint.exact and config.mode == "async":
        yield "checkpoint.exact needs mode 'sync', got 'async': no two overlapping runs are equal"
    if config.checkpoint.exact and not config.checkpoint.every_steps:
        yield "checkpoint.exact needs checkpoint.every_steps, got 0: two runs never save at the same time; try 250000"
    if config.checkpoint.exact and config.checkpoint.replay == "no":
        yield "checkpoint.exact needs checkpoint.replay 'auto' or 'yes', got 'no': the data is a part of the run"
    if data.kind == "prioritized":
        least = config.env.num_envs * (data.burn_in + data.seq_len + 1)
        if data.replay_frames < least:
            yield (
                f"data.replay_frames must hold one sequence of every environment, at least {least}, "
                f"got {data.replay_frames}"
            )
        if data.min_fill > data.replay_frames:
            yield f"data.min_fill must be <= data.replay_frames {data.replay_frames}, got {data.min_fill}"
