"""Every field of a training run: its type, its range, and what it means.

Fields without a default are set by the recipe (`recipes.py`), and every run's config.yaml has them. A field that is
added later needs a default: the behaviour of the runs that were saved without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from casa.config.env import EnvConfig
from casa.config.ranges import (
    AT_LEAST_ONE,
    BELOW_ONE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    TEMPERATURE,
    Named,
    check,
)
from casa.errors import UserError
from casa.tables import BEHAVIOURS, HEADS, TARGETS

Choice = Literal["auto", "yes", "no"]
Device = Literal["auto", "cpu", "cuda"]
Mode = Literal["auto", "sync", "async"]
Precision = Literal["auto", "fp32", "bf16"]
DataKind = Literal["on-policy", "fifo", "prioritized"]
Preset = Literal["paper", "gpu", "laptop"]


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """What is learned: head, targets, gradient, behaviour."""

    head: Annotated[str, Named("head")]
    """Function approximation: casa, actor-critic, dueling, ..."""
    targets: Annotated[str, Named("targets")]
    """Estimator of V^ and Q^: gae, dr-trace, vtrace, vtrace+retrace, n-step-q."""
    weights: Annotated[tuple[float, float, float], NOT_NEGATIVE]
    """Weights of L_V, L_Q and J."""
    policy_loss: Annotated[str, Named("policy loss")]
    """J as score function (score), as PPO's clipped surrogate (clip), or none."""
    entropy_cost: Annotated[float, NOT_NEGATIVE]
    """Weight of the policy's entropy."""
    behaviour: Annotated[str, Named("behaviour")]
    """How actions are taken in the environment: sample, epsilon-greedy."""
    tau: Annotated[float, TEMPERATURE]
    """Temperature of the policy, for heads with advantages."""
    discount: Annotated[float, FRACTION]
    """Discount of a step."""
    reward: Annotated[str, Named("reward")]
    """raw; clip01: clip(r, 0, 1); log: log(|r| + 1) x (2 if r >= 0 else -1)."""
    value_rescale: bool
    """n-step-q targets through h."""
    lam: Annotated[float, FRACTION]
    """Lambda of gae."""
    clip: Annotated[float, NOT_NEGATIVE]
    """PPO's clip epsilon."""
    rho_bar: Annotated[float, POSITIVE]
    """Clip of the importance ratio of traces."""
    c_bar: Annotated[float, POSITIVE]
    """Clip of the trace coefficient."""
    n_step: Annotated[int, AT_LEAST_ONE]
    """Steps of n-step-q."""
    epsilon_base: Annotated[float, FRACTION]
    """Epsilon of an environment is base^u ..."""
    epsilon_range: Annotated[tuple[float, float], POSITIVE]
    """... with u uniform on this range."""


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """The network."""

    backbone: Annotated[str, Named("backbone", auto=True)] = "auto"
    """auto: mlp for vectors, grid for grids, `images` for images."""
    images: Annotated[str, Named("backbone")] = "impala-shallow"
    """The backbone that auto stands for on images."""
    lstm: Annotated[int, NOT_NEGATIVE]
    """LSTM units, 0 = none."""
    hidden: Annotated[int, AT_LEAST_ONE]
    """Width of the backbone's features and of each head's first layer."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data a learner step sees."""

    kind: DataKind
    """on-policy and fifo: every sequence `reuse` times, oldest first; prioritized: a replay buffer."""
    reuse: Annotated[int, AT_LEAST_ONE]
    """How often a sample is used, on average."""
    burn_in: Annotated[int, NOT_NEGATIVE]
    """Steps before the sequence, unrolled from the stored state without gradient or loss."""
    seq_len: Annotated[int, AT_LEAST_ONE]
    """Steps of a sequence."""
    batch: Annotated[int, AT_LEAST_ONE]
    """Sequences a learner step."""
    replay_frames: Annotated[int, AT_LEAST_ONE]
    """Agent steps that a replay buffer holds, one frame each."""
    min_fill: Annotated[int, NOT_NEGATIVE]
    """Agent steps in that buffer before learning starts."""
    priority_exponent: Annotated[float, NOT_NEGATIVE]
    """Exponent of priorities."""
    importance_exponent: Annotated[float, NOT_NEGATIVE]
    """Exponent of importance weights."""
    eta: Annotated[float, FRACTION]
    """Priority of a sequence is eta max|error| + (1 - eta) mean|error|."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The optimizer, and the exchange of weights."""

    lr: Annotated[float, POSITIVE]
    """Peak rate: linear up over the warm-up, then linear to 0."""
    warmup: Annotated[int, NOT_NEGATIVE]
    """Learner steps."""
    betas: Annotated[tuple[float, float], BELOW_ONE]
    """Of AdamW."""
    adam_eps: Annotated[float, POSITIVE]
    """Epsilon of AdamW."""
    weight_decay: Annotated[float, NOT_NEGATIVE]
    """Linear to 0."""
    clip_norm: Annotated[float, POSITIVE]
    """Largest norm of the gradient."""
    target_period: Annotated[int, AT_LEAST_ONE]
    """Learner steps between copies into the target network."""
    publish_every: Annotated[int, AT_LEAST_ONE]
    """Learner steps between publications of the weights."""
    pull_every: Annotated[int, AT_LEAST_ONE]
    """Steps of an environment between pulls of the weights."""
    max_bad_steps: Annotated[int, AT_LEAST_ONE] = 10
    """Non-finite learner steps in a row after which the run stops."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What is written while training."""

    every_seconds: Annotated[float, POSITIVE] = 5.0
    """Between plain lines when the output is piped."""
    every_steps: Annotated[int, AT_LEAST_ONE] = 10_000
    """Agent steps between rows of metrics.jsonl."""
    tensorboard: Choice = "auto"
    """auto: when it is installed."""
    wandb: bool = False
    """Also send the metrics to Weights & Biases."""
    diagnostics: Annotated[tuple[str, ...], Named("diagnostic")] = ("angles",)
    """What is measured every `diagnostics_every` learner steps; angles: chi, cos beta and the other two angles."""
    diagnostics_every: Annotated[int, NOT_NEGATIVE] = 0
    """Learner steps between diagnostics, 0 = off."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is saved while training."""

    every_seconds: Annotated[float, POSITIVE] = 120.0
    """Between checkpoints, where every_steps is 0."""
    every_steps: Annotated[int, NOT_NEGATIVE] = 0
    """Agent steps between checkpoints; 0: by the clock."""
    keep: Annotated[int, AT_LEAST_ONE] = 3
    """Newest checkpoints kept, beside the best."""
    replay: Choice = "auto"
    """Save the data; auto: a replay buffer of up to 256 MiB, and where exact is set."""
    exact: bool = False
    """A run that is killed and resumed equals one that never was, to the bit, on a CPU; every checkpoint ends all
    running episodes as truncations."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run."""

    recipe: str
    """Name of the agent, see casa recipes."""
    preset: Preset
    """The paper's tables as printed, or the same recipe scaled to minutes on a GPU (CASA family), or to two cores."""
    steps: Annotated[int, AT_LEAST_ONE]
    """Agent steps; 1_000_000 and 1e6 are read too."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Determines everything in the sync loop."""
    run_dir: str = ""
    """Where everything is written; empty: runs/RECIPE-ENVIRONMENT-SEED."""
    device: Device = "auto"
    """auto: a GPU where there is one."""
    mode: Mode = "auto"
    """sync is deterministic to the bit; async overlaps emulation, inference and learning."""
    precision: Precision = "auto"
    """auto: bf16 for images where the hardware has it; output layers, targets and losses are fp32 always."""
    compile: Choice = "auto"
    """Fuse the kernels of backbone and core with torch.compile; auto: deep networks in the async loop on CUDA."""
    plugins: tuple[str, ...] = ()
    """Your modules that register heads, targets, recipes and more; on the command line --plugin MODULE."""
    callbacks: Annotated[tuple[str, ...], Named("callback")] = ()
    """Registered callbacks to run beside the built-in ones."""
    agent: AgentConfig
    net: NetConfig
    data: DataConfig
    learner: LearnerConfig
    env: EnvConfig
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def validate(self) -> None:
        """Raise UserError for the first field that is out of range or does not go with the others."""
        check(self)
        for sentence in _conflicts(self):
            raise UserError(sentence)


def _conflicts(config: RunConfig) -> Iterator[str]:
    agent, data, checkpoint = config.agent, config.data, config.checkpoint
    if not HEADS[agent.head].has_q:
        without = f"but the {agent.head} head has none"
        if agent.weights[1] > 0:
            yield f"agent.weights {agent.weights} trains Q, {without}; use 0 for L_Q"
        if TARGETS[agent.targets].needs_q:
            yield f"agent.targets {agent.targets!r} needs Q, {without}; use 'vtrace'"
        if BEHAVIOURS[agent.behaviour].needs_q:
            yield f"agent.behaviour {agent.behaviour!r} needs Q, {without}; use 'sample'"
    if agent.policy_loss == "none" and agent.weights[2] > 0:
        yield f"agent.policy_loss 'none' leaves nothing to weigh by {agent.weights[2]:g}; use 'score'"
    if not any(agent.weights):
        yield "agent.weights are all 0: nothing is trained; set at least one above 0"
    if agent.epsilon_range[0] > agent.epsilon_range[1]:
        yield f"agent.epsilon_range {agent.epsilon_range} must go from the smaller to the larger number"
    if checkpoint.exact and config.mode == "async":
        yield "checkpoint.exact needs mode 'sync', got 'async': no two overlapping runs are equal"
    if checkpoint.exact and not checkpoint.every_steps:
        yield "checkpoint.exact needs checkpoint.every_steps, got 0: two runs never save at the same time; try 250000"
    if checkpoint.exact and checkpoint.replay == "no":
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
