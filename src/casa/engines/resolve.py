"""Resolve "auto" settings for the machine and the environment.

A run's config.yaml stores the resolved values, so it can be read later without this machine or these rules.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from casa.config.env import EnvConfig, Vectorization
from casa.config.fields import Mode, Precision, RunConfig
from casa.envs.types import EnvSpec, ObsKind
from casa.errors import UserError
from casa.nn.backbones import BACKBONES
from casa.runtime.compiled import can_compile_steps
from casa.runtime.machine import cores
from casa.runtime.resources import has_cpu_bf16, pick_device, require_compiler

WORKERS = 2
GROUPS = {"sync": 1, "async": 2}
"""Groups of environments, by mode. Groups are served in turn: while one is served, the other steps."""
WORTH_COMPILING = 20_000
"""Learner steps from which compiling a small one, which takes 10 to 30 seconds, saves time."""
_VECTORIZATIONS: tuple[Vectorization, ...] = ("sync", "async", "pool")
_DEFAULT_BACKBONES = {"vector": "mlp", "grid": "grid"}


def resolve_machine(config: RunConfig) -> RunConfig:
    """Resolve `device` and `mode` for this machine."""
    device = pick_device(config.device)
    return replace(config, device="cuda" if device.type == "cuda" else "cpu", mode=pick_mode(config))


def resolve_network(config: RunConfig, spec: EnvSpec, device: torch.device, overlap: bool) -> RunConfig:
    """Resolve `net.backbone`, `precision`, `compile` and `env.vectorization` for these environments and this device."""
    config = replace(config, net=replace(config.net, backbone=pick_backbone(config, spec.kind)))
    precision: Precision = "bf16" if pick_bf16(config, device, spec.kind) else "fp32"
    vectorization: Vectorization = "native"
    for name in _VECTORIZATIONS:
        if spec.vectorization == name:
            vectorization = name
    return replace(
        config,
        precision=precision,
        compile="yes" if pick_compile(config, device, overlap, spec.kind) else "no",
        env=replace(config.env, vectorization=vectorization),
    )


def forget_machine(config: RunConfig) -> RunConfig:
    """The same run for another device: the fields that depend on the device are "auto" again."""
    return replace(config, device="auto", mode="auto", precision="auto", compile="auto")


def pick_backbone(config: RunConfig, kind: ObsKind) -> str:
    """`net.backbone`; if that is "auto", the default backbone for observations of this kind."""
    backbone = config.net.backbone
    if backbone == "auto":
        return _DEFAULT_BACKBONES.get(kind, config.net.images)
    if kind not in BACKBONES[backbone].reads:
        raise UserError(
            f"net.backbone {backbone!r} cannot read the {kind} observations of {config.env.id}; "
            f"use {_DEFAULT_BACKBONES.get(kind, config.net.images)!r}"
        )
    return backbone


def pick_bf16(config: RunConfig, device: torch.device, kind: ObsKind) -> bool:
    """Whether to use bf16. auto: for image convolutions, if the hardware supports bf16 natively."""
    if config.precision != "auto":
        return config.precision == "bf16"
    return kind == "image" and config.net.backbone != "mlp" and (device.type == "cuda" or has_cpu_bf16())


def pick_compile(config: RunConfig, device: torch.device, overlap: bool, kind: ObsKind) -> bool:
    """Whether to compile. auto: what repays the time of compilation.

    On CUDA that is a deep network in the async loop: there the compiler picks kernels by measured speed, which is not
    reproducible. On a CPU it is the learner step of a small network in a long run, with the same kernels every time.
    """
    if config.compile == "auto":
        if device.type == "cuda":
            return overlap and BACKBONES[config.net.backbone].deep
        small = kind != "image" and not config.net.lstm and config.engine == "local"
        updates = config.steps * config.data.reuse / (config.data.batch * config.data.seq_len)
        return small and updates >= WORTH_COMPILING and can_compile_steps()
    if config.compile == "yes":
        require_compiler(device)
    return config.compile == "yes"


def pick_workers(config: RunConfig, device: torch.device, kind: ObsKind, overlap: bool) -> int:
    """Threads that share a learner step: two for images on a CPU with at least two cores, else one.

    Also one if acting overlaps with learning and `data.reuse` <= 2: the actor then needs the other core. Threads add
    their gradients, so there is one if the losses' gradients are combined in another way.
    """
    small = kind != "image" or config.net.backbone == "mlp" or config.agent.gradients != "sum"
    if device.type == "cuda" or small or (overlap and config.data.reuse <= 2):
        return 1
    return min(WORKERS, cores(), config.data.batch)


def pick_mode(config: RunConfig) -> Mode:
    """auto: async, which is faster; sync for on-policy data on a CPU of one machine, and for `checkpoint.exact`.

    On a CPU, async doubles the staleness of on-policy data. It is at most 25% faster there, and loses more than that in
    learning (docs/training.md). `checkpoint.exact` needs bitwise determinism.
    """
    if config.mode != "auto":
        return config.mode
    if config.engine == "ray":
        return "async"  # sync crosses the network for each step of the environments
    fresh = config.data.kind == "on-policy" and pick_device(config.device).type == "cpu"
    return "sync" if fresh or config.checkpoint.exact else "async"


def pick_group_size(env: EnvConfig, groups: int) -> int:
    """`env.group_size`, which must divide `num_envs`; 0: `num_envs` / `groups` if that is whole, else `num_envs`."""
    if not env.group_size:
        return env.num_envs // groups if env.num_envs % groups == 0 else env.num_envs
    if env.num_envs % env.group_size:
        divisors = [d for d in range(1, env.num_envs + 1) if env.num_envs % d == 0]
        near = min(divisors, key=lambda d: abs(d - env.group_size))
        raise UserError(
            f"env.group_size must divide env.num_envs {env.num_envs}, got {env.group_size}; the nearest is {near}"
        )
    return env.group_size
