"""Build the parts of a run from its configuration."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
import torch

from casa.config.env import EnvConfig
from casa.config.fields import RunConfig
from casa.engines.mailbox import Mailbox
from casa.engines.resolve import pick_group_size, pick_workers, resolve_network
from casa.engines.system import System
from casa.envs import make_env
from casa.envs.names import resolve
from casa.envs.types import Array, EnvSpec, VecEnv
from casa.errors import UserError
from casa.learn.estimators import TARGETS
from casa.learn.learner import Learner, compiles_whole_step
from casa.learn.rewards import REWARDS
from casa.nn import Network
from casa.rollout.actor import Actor, HowCompiled
from casa.rollout.behaviour import BEHAVIOURS, draw_epsilons
from casa.rollout.mixed import MixedSampler
from casa.rollout.ring import Ring, RingShape
from casa.rollout.samplers import SLOTS_A_STEP, FifoSampler, PrioritizedSampler, Sampler
from casa.rollout.scale import ReturnScale
from casa.runtime.resources import pick_device, require_memory
from casa.runtime.seeds import seed_for
from casa.runtime.streams import side_stream
from casa.runtime.threads import with_low_priority

Note = Callable[[str], None]
EnvFactory = Callable[[EnvConfig, int, int], VecEnv]
"""(env config, number of environments, seed) -> vector env."""


def build_system(
    config: RunConfig,
    groups: int = 1,
    note: Note = lambda text: None,
    env_factory: EnvFactory = make_env,
    compiled: bool | None = None,
) -> System:
    """Build all parts of a run. With `groups` > 1, acting overlaps with learning.

    `compiled`, if given, overrides `config.compile`; if the compiler fails, the network then runs in eager mode.
    """
    note(f"starting {config.env.num_envs} environments")
    envs = make_envs(config, groups, env_factory)
    return assemble(config, envs[0].spec, envs, groups > 1, note, compiled)


def assemble(
    config: RunConfig,
    spec: EnvSpec,
    envs: list[VecEnv],
    overlap: bool,
    note: Note,
    compiled: bool | None = None,
    make_learner: Callable[..., Learner] = Learner,
) -> System:
    """Everything but the environments. Without `envs`, which workers then have, it has no actors yet."""
    device = pick_device(config.device)
    fall_back = config.compile == "auto"  # to eager mode, if the compiler fails
    if compiled is not None:
        config, fall_back = replace(config, compile="yes" if compiled else "no"), True
    config = resolve_network(config, spec, device, overlap)
    advice = "lower net.hidden, net.lstm or data.batch, or make the observations smaller"
    require_memory(learner_bytes(config, spec), device, "the network with its batch", advice)
    network = _seeded(config, "network", lambda: build_network(config, spec)).to(device)
    if spec.actions.continuous and len(spec.actions.choices) > 1 and config.agent.targets == "n-step-q":
        note("agent.targets n-step-q overestimates with several continuous actions; n-step-expected-q does not")
    if config.compile == "yes":
        note("compiling when the network is first used, which takes up to a minute")
    workers = pick_workers(config, device, spec.kind, overlap)
    actor_network = acting_copy(network, config, workers)
    learner = make_learner(network, config, workers=workers, fall_back=fall_back)
    shape = ring_shape(config, spec, network)
    note(require_memory(shape.bytes, device, "the trajectory ring"))
    ring = Ring(shape, device)
    generator = torch.Generator(device).manual_seed(seed_for(config.seed, "actions", 0))
    scale = make_scale(config, config.env.num_envs)
    how: HowCompiled = "no"
    if compiles_whole_step(network, config, workers):
        how = "try" if fall_back else "yes"
    return System(
        config=config,
        device=device,
        envs=envs,
        spec=spec,
        network=network,
        actor_network=actor_network,
        mailbox=Mailbox(network),
        learner=learner,
        ring=ring,
        sampler=make_sampler(config, ring),
        actors=make_actors(config, envs, actor_network, ring, generator, scale, compiled=how),
        return_scale=scale,
        generator=generator,
        stream=side_stream(device) if overlap else None,
    )


def acting_copy(network: Network, config: RunConfig, workers: int = 1) -> Network:
    """A copy of the network to act with: without gradients, in the run's precision, its backbone compiled if it is."""
    actor_network = copy.deepcopy(network).requires_grad_(False)
    if config.precision == "bf16":
        actor_network = actor_network.to_bf16()
    if config.compile == "yes" and not compiles_whole_step(network, config, workers):
        actor_network.compile_backbones()
    return actor_network


def make_scale(config: RunConfig, num_envs: int) -> ReturnScale:
    """The scale of the returns of `num_envs` environments."""
    return ReturnScale(num_envs, config.agent.discount, _shape(config.agent.reward))


def make_envs(config: RunConfig, groups: int, env_factory: EnvFactory, first: int = 0) -> list[VecEnv]:
    """Create the vector envs: for Atari one pool that serves whichever envs are ready, else `groups` served in turn.

    `first` is the number of the first group, which determines its seed. The threads of environments have low priority:
    emulators occupy every core, and the threads that feed them must not wait.
    """
    atari = env_factory is make_env and resolve(config.env.id).kind == "atari"
    if config.env.group_size and not atari:
        raise UserError(
            f"env.group_size {config.env.group_size} is for Atari; {config.env.id} is served as a whole, use 0"
        )
    if groups > 1 and atari:
        env_factory, groups = partial(make_env, group_size=pick_group_size(config.env, groups)), 1
    elif groups == 1 and env_factory is make_env:  # then nothing is learned while the environments step
        env_factory = partial(make_env, here=True)

    def make() -> list[VecEnv]:
        counts = enumerate(_split(config.env.num_envs, groups))
        return [env_factory(config.env, count, seed_for(config.seed, "group", first + i)) for i, count in counts]

    return with_low_priority(make)


def build_network(config: RunConfig, spec: EnvSpec) -> Network:
    """Build the network of a resolved configuration for these environments, newly initialised, on the CPU."""
    try:
        network = Network(
            spec.obs_shape,
            spec.actions,
            backbone=config.net.backbone,
            lstm=config.net.lstm,
            head=config.agent.head,
            tau=config.agent.tau,
            tau_anneals=config.agent.tau_decay < 1,
            epsilon_anneals=config.agent.epsilon_decay < 1 and BEHAVIOURS[config.agent.behaviour].takes_epsilon,
            hidden=config.net.hidden,
            obs_norm=config.net.obs_norm and spec.kind != "image",
            advantage_unit=config.agent.advantage_unit,
            head_layers=config.net.head_layers,
            knots=config.agent.knots,
            kernel=config.agent.kernel,
            initial_std=config.net.initial_std,
            value_backbone=config.net.value_backbone,
            atoms=config.agent.atoms,
            support=config.agent.support,
            noise=config.net.noise,
        )
    except ValueError as error:  # image too small for the backbone, or head unsuitable for the actions
        raise UserError(str(error)) from None
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def learner_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """Memory of the weights, with gradients, moments and copies, and of a batch of observations; a lower bound."""
    try:
        with torch.device("meta"):  # without memory
            parameters = sum(x.numel() for x in build_network(config, spec).parameters())
    except RuntimeError as error:
        if config.plugins:  # a backbone that cannot be built like this
            return 0
        sizes = f"net.hidden {config.net.hidden} and net.lstm {config.net.lstm}"
        raise UserError(f"{sizes} are too large: {error}") from None
    data, target = config.data, TARGETS[config.agent.targets].needs_target_network
    frames = data.batch * (data.burn_in + data.seq_len + 1)
    return 4 * parameters * (7 if target else 6) + frames * prod(spec.obs_shape) * spec.obs_dtype.itemsize


def ring_shape(config: RunConfig, spec: EnvSpec, network: Network) -> RingShape:
    """Sizes of the trajectory ring: large enough for all sequences that the learner still needs."""
    data, envs = config.data, config.env.num_envs
    length = data.burn_in + data.seq_len
    if data.kind == "prioritized":
        least = length + data.seq_len + SLOTS_A_STEP + spec.frame_stack  # holds at least one complete sequence
        capacity = max(-(-data.replay_frames // envs), least)
    elif data.kind == "mixed":
        # The replay, and what the actor may write before the next batch is drawn from it.
        replay = replay_slots(config) + SLOTS_A_STEP + 1 + spec.frame_stack
        capacity = max(replay, _queue_slots(config, spec, data.batch // data.reuse))
    else:
        # With reuse, sequences wait until there is a batch or a rollout of them, and the rest of a pass waits for
        # the next one.
        capacity = _queue_slots(config, spec, max(data.batch, data.rollout) * (2 if data.reuse > 1 else 1))
    stacked = spec.frame_stack > 1
    return RingShape(
        capacity=-(-capacity // data.seq_len) * data.seq_len,
        num_envs=envs,
        frame_shape=spec.obs_shape[1:] if stacked else spec.obs_shape,
        frame_dtype=torch.uint8 if spec.obs_dtype == np.uint8 else torch.float32,
        stack=spec.frame_stack,
        state_size=2 * config.net.lstm,
        state_every=data.seq_len,
        action_shape=spec.actions.flat_shape,
        action_dtype=spec.actions.dtype,
        policy_size=network.policy_size if config.agent.trust_region else 0,
    )


def _queue_slots(config: RunConfig, spec: EnvSpec, together: int) -> int:
    """Slots per environment that hold every sequence until `together` of them have come.

    Meanwhile slow environments write one slot per step and fast ones up to SLOTS_A_STEP. One more block lets the actor
    run ahead. A worker of a cluster sends a sequence at a time, and may be the only one that sends.
    """
    data, writing = config.data, config.env.num_envs // config.cluster.actors
    waiting = -(-together // writing) + (config.engine == "ray")
    blocks = data.seq_len * (waiting + 1)
    return data.burn_in + data.seq_len + SLOTS_A_STEP * (blocks + 3) + spec.frame_stack


def replay_slots(config: RunConfig) -> int:
    """Slots per environment that a mixed replay draws from: `data.replay_frames`, and always a complete sequence."""
    data = config.data
    return max(-(-data.replay_frames // config.env.num_envs), data.burn_in + 2 * data.seq_len)


def make_sampler(config: RunConfig, ring: Ring) -> Sampler:
    """Build the sampler for `config.data.kind`."""
    data = config.data
    rng = np.random.default_rng(seed_for(config.seed, "sampler", 0))
    if data.kind == "prioritized":
        return PrioritizedSampler(
            ring,
            seq_len=data.seq_len,
            burn_in=data.burn_in,
            batch=data.batch,
            reuse=data.reuse,
            exponent=data.priority_exponent,
            importance=data.importance_exponent,
            anneal_over=config.steps if data.importance_anneal else 0,
            min_fill=data.min_fill,
            rng=rng,
        )
    if data.kind == "mixed":
        return MixedSampler(
            ring,
            seq_len=data.seq_len,
            burn_in=data.burn_in,
            batch=data.batch,
            reuse=data.reuse,
            replay=replay_slots(config),
            min_fill=data.min_fill,
            rng=rng,
        )
    return FifoSampler(
        ring,
        seq_len=data.seq_len,
        burn_in=data.burn_in,
        batch=data.batch,
        reuse=data.reuse,
        rng=rng,
        rollout=data.rollout,
    )


def make_actors(
    config: RunConfig,
    envs: list[VecEnv],
    network: Network,
    ring: Ring,
    generator: torch.Generator,
    scale: ReturnScale,
    first: int = 0,
    compiled: HowCompiled = "no",
) -> list[Actor]:
    """Build one actor per vector env; together they write all columns of the ring.

    Column 0 of the ring is environment `first` of the run.
    """
    agent = config.agent
    rng = np.random.default_rng(seed_for(config.seed, "epsilon", 0))
    epsilons = draw_epsilons(config.env.num_envs, agent.epsilon_base, *agent.epsilon_range, rng)
    epsilons = epsilons[torch.as_tensor(rng.permutation(len(epsilons)))]
    seen = scale if agent.reward_scale == "return" else None
    actors, start = [], 0
    for env in envs:
        columns = np.arange(start, start + env.spec.num_envs)
        own = epsilons[first + columns]
        actors.append(Actor(env, network, ring, columns, agent.behaviour, own, generator, seen, compiled))
        start += len(columns)
    return actors


def _seeded(config: RunConfig, purpose: str, make: Callable[[], Network]) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, purpose, 0))
        return make()


def _shape(reward: str) -> Callable[[Array], Array]:
    return lambda rewards: REWARDS[reward](torch.as_tensor(rewards)).numpy()


def _split(total: int, groups: int) -> list[int]:
    """Sizes of at most `groups` nearly equal, non-empty parts of `total` environments."""
    groups = min(groups, total)
    return [total // groups + (i < total % groups) for i in range(groups)]
