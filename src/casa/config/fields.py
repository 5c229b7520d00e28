"""Every field of a training run: its type, its range, and what it means.

Fields without a default are set by the recipe (`recipes.py`), and every run's config.yaml has them. A field added
later needs a default that reproduces the behaviour of older runs, which were saved without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from casa.config.env import EnvConfig
from casa.config.ranges import (
    AT_LEAST_ONE,
    BELOW_ONE,
    FRACTION,
    MODERATE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    TEMPERATURE,
    Named,
    check,
    integers,
)
from casa.errors import UserError
from casa.tables import BEHAVIOURS, HEADS, TARGETS

Choice = Literal["auto", "yes", "no"]
Device = Literal["auto", "cpu", "cuda"]
Mode = Literal["auto", "sync", "async"]
Engine = Literal["local", "ray"]
Precision = Literal["auto", "fp32", "bf16"]
DataKind = Literal["on-policy", "fifo", "mixed", "prioritized"]
Preset = Literal["paper", "gpu", "laptop", "classic", "grid", "continuous"]


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The algorithm: head, targets, losses and behaviour policy."""

    head: Annotated[str, Named("head")]
    """Function approximation: casa, actor-critic, dueling, categorical, ..."""
    targets: Annotated[str, Named("targets")]
    """Estimator of the targets V^ and Q^: gae, dr-trace, vtrace, vtrace+retrace, n-step-q,
    n-step-expected-q, n-step-categorical."""
    weights: Annotated[tuple[float, float, float], NOT_NEGATIVE]
    """Weights of the value loss L_V, the Q loss L_Q and the policy objective J."""
    policy_loss: Annotated[str, Named("policy loss")]
    """Policy objective J: score (policy gradient), clip (PPO's clipped surrogate) or none."""
    gradients: Annotated[str, Named("gradients")] = "sum"
    """How the losses' gradients are combined: sum, or pcgrad, which removes from each of two conflicting gradients its
    component along the other. The entropy bonus is part of J."""
    entropy_cost: Annotated[float, NOT_NEGATIVE]
    """Weight of the entropy bonus."""
    behaviour: Annotated[str, Named("behaviour")]
    """Behaviour policy: sample, epsilon-greedy, greedy (which explores by net.noise)."""
    tau: Annotated[float, TEMPERATURE]
    """Temperature of the policy softmax(A / tau), for heads with advantages."""
    tau_decay: Annotated[float, SHARE] = 1.0
    """tau falls linearly to this share of itself, with the learning rate, which resume --lr sets; 1: it is constant."""
    atoms: Annotated[int, integers(2, 201)] = 51
    """The head categorical: number of atoms of the distribution whose mean is Q."""
    support: Annotated[tuple[float, float], MODERATE] = (-10.0, 10.0)
    """The head categorical: the lowest and the highest atom, in the unit in which returns are learned."""
    knots: Annotated[int, integers(2, 1001)] = 11
    """Continuous actions: network outputs per dimension, the advantages at evenly spaced actions (or coefficients)."""
    kernel: Literal["hat", "gaussian", "polynomial"] = "hat"
    """Continuous actions: hat interpolates linearly between the knots, gaussian is the paper's kernel, polynomial has
    a smooth advantage of degree `knots`. The heads gaussian and casa-gaussian have no kernel."""
    discount: Annotated[float, FRACTION]
    """Discount factor per agent step."""
    reward: Annotated[str, Named("reward")]
    """Reward transform: raw; clip: clip(r, -1, 1); clip01: clip(r, 0, 1); log: log(|r| + 1) x (2 if r >= 0 else -1)."""
    value_rescale: bool
    """Rescale n-step targets with R2D2's function h."""
    reward_scale: Literal["none", "return"] = "none"
    """return: shaped rewards are divided by the running standard deviation of the discounted return."""
    advantage_unit: Literal["return", "tau"] = "return"
    """tau: the network's output is A / tau, so that its updates are equally large at every temperature."""
    advantage_norm: bool = False
    """Divide the Q loss and the policy objective by the root mean square of the batch's advantages."""
    advantage_centre: bool = False
    """Subtract the batch's mean advantage in the policy objective."""
    lam: Annotated[float, FRACTION]
    """Lambda of GAE."""
    clip: Annotated[float, NOT_NEGATIVE]
    """PPO's clip epsilon."""
    rho_bar: Annotated[float, POSITIVE]
    """Upper bound of the importance ratio rho, for trace targets."""
    c_bar: Annotated[float, POSITIVE]
    """Upper bound of the trace coefficient c, for trace targets."""
    trust_region: Annotated[float, NOT_NEGATIVE] = 0.0
    """Trace targets: where KL(pi || mu) is at least this, a transition is not used and cuts the traces; 0: off."""
    n_step: Annotated[int, AT_LEAST_ONE]
    """Number of steps n of n-step targets."""
    epsilon_base: Annotated[float, FRACTION]
    """Epsilon-greedy: each environment has epsilon = epsilon_base^u, with its own u."""
    epsilon_range: Annotated[tuple[float, float], POSITIVE]
    """Epsilon-greedy: range of the uniform u in epsilon_base^u."""
    epsilon_decay: Annotated[float, SHARE] = 1.0
    """Epsilon-greedy: each epsilon is multiplied by epsilon_decay^x, where x goes from 0 to 1 as the learning rate
    falls, which resume --lr sets; 1: it is constant."""


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """The network."""

    backbone: Annotated[str, Named("backbone", auto=True)] = "auto"
    """Backbone; auto: mlp for vectors, grid for grids, net.images for images."""
    images: Annotated[str, Named("backbone")] = "impala-shallow"
    """Backbone that auto selects for images."""
    lstm: Annotated[int, NOT_NEGATIVE]
    """LSTM units, 0 = none."""
    hidden: Annotated[int, AT_LEAST_ONE]
    """Width of the backbone's features and of each head's first layer."""
    head_layers: Literal[1, 2] = 2
    """Fully connected layers of each output."""
    value_backbone: bool = False
    """V has a backbone of its own, so that L_V does not change the features that the policy reads."""
    noise: Annotated[float, NOT_NEGATIVE] = 0.0
    """NoisyNet: sigma_0 of the outputs' layers, 0 = no noise. Acting has new noise in each step, learning in each
    learner step; deterministic play has none."""
    initial_std: Annotated[float, NOT_NEGATIVE] = 0.0
    """Continuous actions: standard deviation of the first policy, where the bounds are -1 and 1; 0: uniform."""
    obs_norm: bool = False
    """Normalise vectors, and each channel of grids, by their running mean and standard deviation."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data of a learner step."""

    kind: DataKind
    """on-policy and fifo: every sequence is used `reuse` times, oldest first; prioritized: a replay buffer.
    mixed: one in `reuse` sequences of a batch is new, the others are uniform draws from a replay buffer."""
    reuse: Annotated[int, AT_LEAST_ONE]
    """Number of learner steps that use a sample, on average."""
    burn_in: Annotated[int, NOT_NEGATIVE]
    """Burn-in steps before the sequence, unrolled from the stored LSTM state without gradient or loss."""
    seq_len: Annotated[int, AT_LEAST_ONE]
    """Steps per sequence."""
    batch: Annotated[int, AT_LEAST_ONE]
    """Sequences per learner step."""
    rollout: Annotated[int, NOT_NEGATIVE] = 0
    """on-policy and fifo: sequences that are collected before they are used, in shuffled passes; 0: one batch."""
    replay_frames: Annotated[int, AT_LEAST_ONE]
    """Capacity of the replay buffer in agent steps; one frame is stored per step."""
    min_fill: Annotated[int, NOT_NEGATIVE]
    """Agent steps in the replay buffer before learning starts."""
    priority_exponent: Annotated[float, NOT_NEGATIVE]
    """Exponent of the replay priorities."""
    importance_exponent: Annotated[float, NOT_NEGATIVE]
    """Exponent of the replay importance weights."""
    importance_anneal: bool = False
    """The exponent of the importance weights rises linearly to 1 over the run."""
    eta: Annotated[float, FRACTION]
    """The priority of a sequence is eta max|error| + (1 - eta) mean|error|."""

    @property
    def replays(self) -> bool:
        """Whether the data is a replay buffer, which takes long to fill."""
        return self.kind in ("mixed", "prioritized")


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The optimizer, and how often weights are passed to the actors."""

    lr: Annotated[float, POSITIVE]
    """Peak learning rate: rises linearly during the warm-up, then falls linearly to 0."""
    warmup: Annotated[int, NOT_NEGATIVE]
    """Learner steps of learning-rate warm-up."""
    betas: Annotated[tuple[float, float], BELOW_ONE]
    """Betas of AdamW."""
    adam_eps: Annotated[float, POSITIVE]
    """Epsilon of AdamW."""
    weight_decay: Annotated[float, NOT_NEGATIVE]
    """Initial weight decay of AdamW; falls linearly to 0."""
    clip_norm: Annotated[float, POSITIVE]
    """Maximum norm of the gradient; larger ones are clipped."""
    target_period: Annotated[int, AT_LEAST_ONE]
    """Learner steps between updates of the target network."""
    publish_every: Annotated[int, AT_LEAST_ONE]
    """Learner steps between publishing new weights to the actors."""
    pull_every: Annotated[int, AT_LEAST_ONE]
    """Steps per environment between the actors' pulls of published weights."""
    max_bad_steps: Annotated[int, AT_LEAST_ONE] = 10
    """The run stops after this many consecutive non-finite learner steps."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Logging during training."""

    every_seconds: Annotated[float, POSITIVE] = 5.0
    """Seconds between progress lines when the output is piped."""
    every_steps: Annotated[int, AT_LEAST_ONE] = 10_000
    """Agent steps between rows of metrics.jsonl."""
    tensorboard: Choice = "auto"
    """Write TensorBoard logs; auto: if TensorBoard is installed."""
    wandb: bool = False
    """Also send the metrics to Weights & Biases."""
    diagnostics: Annotated[tuple[str, ...], Named("diagnostic")] = ("conflict",)
    """Diagnostics to run every diagnostics_every learner steps; conflict: chi, cos beta and what goes with them."""
    diagnostics_every: Annotated[int, NOT_NEGATIVE] = 100
    """Learner steps between diagnostics; 0 = off."""
    diagnostics_sequences: Annotated[int, NOT_NEGATIVE] = 0
    """Sequences of the batch that conflict is measured on; 0: a quarter of them, from 2 to 8."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints during training."""

    every_seconds: Annotated[float, POSITIVE] = 120.0
    """Seconds between checkpoints, if every_steps is 0."""
    every_steps: Annotated[int, NOT_NEGATIVE] = 0
    """Agent steps between checkpoints; 0: use every_seconds."""
    keep: Annotated[int, AT_LEAST_ONE] = 3
    """Number of newest checkpoints to keep, in addition to the best one."""
    replay: Choice = "auto"
    """Save the training data too; auto: if it is a replay buffer of up to 256 MiB, or if exact is set."""
    exact: bool = False
    """On a CPU, a killed and resumed run is bit-identical to an uninterrupted one.
    Every checkpoint truncates all running episodes."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The processes of a run with engine ray."""

    actors: Annotated[int, AT_LEAST_ONE] = 1
    """Rollout workers. They share env.num_envs; on the command line --actors N."""
    learners: Annotated[int, AT_LEAST_ONE] = 1
    """Processes that share each batch, a divisor of data.batch; on the command line --learners N."""
    address: str = ""
    """Address of a running Ray cluster; empty: RAY_ADDRESS if that is set, else a new one on this machine.
    On the command line --address ADDRESS."""
    actor_cpus: Annotated[float, POSITIVE] = 1.0
    """Cores that Ray reserves for each rollout worker; also its emulator threads, if env.threads is 0."""
    actor_gpus: Annotated[float, NOT_NEGATIVE] = 0.0
    """Share of a GPU that Ray reserves for each rollout worker; 0: it acts on its cores."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run."""

    recipe: str
    """Name of the agent; casa recipes lists them."""
    preset: Preset
    """paper: the paper's tables as printed; laptop: scaled to two cores; classic: for vector observations.
    continuous: the same with continuous actions; grid: for small grids; gpu: scaled to minutes on a GPU."""
    steps: Annotated[int, AT_LEAST_ONE]
    """Agent steps to train for; 1_000_000 and 1e6 are accepted."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Random seed; in sync mode it determines the whole run."""
    run_dir: str = ""
    """Output directory; empty: runs/RECIPE-ENVIRONMENT-SEED."""
    device: Device = "auto"
    """auto: a GPU if there is one."""
    mode: Mode = "auto"
    """sync: deterministic to the bit; async: emulation, inference and learning overlap."""
    precision: Precision = "auto"
    """auto: bf16 for images if the hardware supports it; output layers, targets and losses are always fp32."""
    compile: Choice = "auto"
    """Compile with torch.compile: backbone and core, on a CPU the whole step of a small network.
    auto: deep networks in async mode on CUDA, and long runs of small networks on a CPU."""
    engine: Engine = "local"
    """local: one process; ray: rollout workers and learners over a Ray cluster, see cluster."""
    plugins: tuple[str, ...] = ()
    """Your modules that register heads, targets, recipes and more; on the command line --plugin MODULE."""
    callbacks: Annotated[tuple[str, ...], Named("callback")] = ()
    """Registered callbacks to run in addition to the built-in ones."""
    agent: AgentConfig
    net: NetConfig
    data: DataConfig
    learner: LearnerConfig
    env: EnvConfig
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def validate(self) -> None:
        """Raise a UserError for the first field that is out of range or conflicts with another."""
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
    if TARGETS[agent.targets].needs_atoms and not HEADS[agent.head].takes_support:
        yield f"agent.targets {agent.targets!r} needs agent.head 'categorical', got {agent.head!r}; use 'n-step-q'"
    if agent.support[0] >= agent.support[1]:
        yield f"agent.support {agent.support} must go from the smaller to the larger number"
    if agent.behaviour == "greedy" and not config.net.noise:
        yield "agent.behaviour 'greedy' explores by noise only, and net.noise is 0; use 0.5, or 'epsilon-greedy'"
    if agent.policy_loss == "none" and agent.weights[2] > 0:
        yield f"agent.policy_loss 'none' leaves nothing to weigh by {agent.weights[2]:g}; use 'score'"
    if not any(agent.weights):
        yield "agent.weights are all 0: nothing is trained; set at least one above 0"
    if config.net.value_backbone and config.net.lstm:
        yield (
            f"net.value_backbone needs net.lstm 0, got {config.net.lstm}: V would not see the recurrent state; "
            "use net.value_backbone false or net.lstm 0"
        )
    if config.net.value_backbone and "value" not in HEADS[agent.head].outputs:
        yield (
            f"net.value_backbone needs an output for V, but agent.head {agent.head!r} has none; "
            "use net.value_backbone false"
        )
    if not TEMPERATURE.holds(agent.tau * agent.tau_decay):
        yield (
            f"agent.tau {agent.tau:g} times agent.tau_decay {agent.tau_decay:g} must be {TEMPERATURE.text}; "
            f"use agent.tau_decay {math.ceil(1e-4 / agent.tau) / 100:g}"
        )
    if agent.value_rescale and agent.reward_scale == "return":
        yield "agent.value_rescale and agent.reward_scale 'return' both change the unit of values; use one of them"
    if agent.epsilon_range[0] > agent.epsilon_range[1]:
        yield f"agent.epsilon_range {agent.epsilon_range} must go from the smaller to the larger number"
    if checkpoint.exact and config.mode == "async":
        yield "checkpoint.exact needs mode 'sync', got 'async': no two overlapping runs are equal"
    if checkpoint.exact and not checkpoint.every_steps:
        yield "checkpoint.exact needs checkpoint.every_steps, got 0: two runs never save at the same time; try 250000"
    if checkpoint.exact and checkpoint.replay == "no":
        yield "checkpoint.exact needs checkpoint.replay 'auto' or 'yes', got 'no': the data is a part of the run"
    yield from trust_conflicts(agent)
    yield from _cluster_conflicts(config)
    if data.kind == "mixed" and data.batch % data.reuse:
        yield (
            f"data.kind 'mixed' needs a data.batch that data.reuse {data.reuse} divides, got {data.batch}: one in "
            f"{data.reuse} sequences of a batch is new; use {-(-data.batch // data.reuse) * data.reuse}"
        )
    if data.replays:
        least = config.env.num_envs * (data.burn_in + data.seq_len + 1)
        if data.replay_frames < least:
            yield (
                f"data.replay_frames must hold one sequence of every environment, at least {least}, "
                f"got {data.replay_frames}"
            )
        if data.min_fill > data.replay_frames:
            yield f"data.min_fill must be <= data.replay_frames {data.replay_frames}, got {data.min_fill}"


def trust_conflicts(agent: AgentConfig) -> Iterator[str]:
    """What stands against `agent.trust_region`."""
    if not agent.trust_region:
        return
    if not TARGETS[agent.targets].has_traces:
        yield f"agent.trust_region cuts traces, but agent.targets {agent.targets!r} has none; use 0 or 'vtrace'"
    if agent.behaviour != "sample":
        yield f"agent.trust_region needs agent.behaviour 'sample', got {agent.behaviour!r}: mu must be an earlier pi"


def _cluster_conflicts(config: RunConfig) -> Iterator[str]:
    cluster, envs, batch = config.cluster, config.env.num_envs, config.data.batch
    if config.engine == "local":
        changed = [f.name for f in fields(cluster) if getattr(cluster, f.name) != f.default]
        if changed:
            name = changed[0]
            yield f"cluster.{name} {getattr(cluster, name)!r} needs engine 'ray', got engine 'local'"
        return
    if cluster.actors > envs:
        yield f"cluster.actors must be <= env.num_envs {envs}, got {cluster.actors}: each worker plays at least one"
    if batch % cluster.learners:
        near = min((n for n in range(1, batch + 1) if batch % n == 0), key=lambda n: abs(n - cluster.learners))
        yield f"cluster.learners must divide data.batch {batch}, got {cluster.learners}; the nearest is {near}"
    if cluster.learners > 1 and config.device == "cuda":
        yield f"cluster.learners {cluster.learners} needs device 'cpu', got 'cuda'; use 1 learner on a GPU"
    if cluster.learners > 1 and config.agent.gradients != "sum":
        yield f"cluster.learners {cluster.learners} needs agent.gradients 'sum', got {config.agent.gradients!r}"
    if config.checkpoint.exact:
        yield "checkpoint.exact needs engine 'local', got 'ray': the workers' random states are not saved"
