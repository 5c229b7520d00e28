"""What the machine and the environment decide where the configuration says "auto".

A run's config.yaml holds the answers: whoever reads it later needs neither this machine nor these rules.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from casa.config.env import EnvConfig, Vectorization
from casa.config.fields import Mode, Precision, RunConfig
from casa.envs.types import EnvSpec, ObsKind
from casa.errors import UserError
from casa.nn.backbones import BACKBONES
from casa.runtime.machine import cores
from casa.runtime.resources import has_cpu_bf16, pick_device, require_compiler

WORKERS = 2
GROUPS = {"sync": 1, "async": 2}
"""Parts of the environments that are served in turn: while one is served, the other runs."""
_DEFAULT_BACKBONES = {"vector": "mlp", "grid": "grid"}


def resolve_machine(config: RunConfig) -> RunConfig:
    """`device` and `mode` as this machine has them."""
    device = pick_device(config.device)
    return replace(config, device="cuda" if device.type == "cuda" else "cpu", mode=pick_mode(config))


def resolve_network(config: RunConfig, spec: EnvSpec, device: torch.device, overlap: bool) -> RunConfig:
    """`net.backbone`, `precision`, `compile` and `env.vectorization` for these environments on this device."""
    config = replace(config, net=replace(config.net, backbone=pick_backbone(config, spec.kind)))
    precision: Precision = "bf16" if pick_bf16(config, device, spec.kind) else "fp32"
    vectorization: Vectorization = "native"
    if spec.vectorization == "sync":
        vectorization = "sync"
    elif spec.vectorization == "async":
        vectorization = "async"
    return replace(
        config,
        precision=precision,
        compile="yes" if pick_compile(config, device, overlap) else "no",
        env=replace(config.env, vectorization=vectorization),
    )


def forget_machine(config: RunConfig) -> RunConfig:
    """The same run for another device: what was resolved for the old one is left to the new one."""
    return replace(config, device="auto", mode="auto", precision="auto", compile="auto")


def pick_backbone(config: RunConfig, kind: ObsKind) -> str:
    """The backbone for observations of this kind: net.backbone, or what its "auto" stands for."""
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
    """auto: bf16 for convolutions over images where the hardware multiplies it natively, else fp32."""
    if config.precision != "auto":
        return config.precision == "bf16"
    return kind == "image" and config.net.backbone != "mlp" and (device.type == "cuda" or has_cpu_bf16())


def pick_compile(config: RunConfig, device: torch.device, overlap: bool) -> bool:
    """auto: on CUDA where the network is deep enough to gain more than the minute that compiling takes.

    The compiler picks kernels by their measured speed, so not always the same ones: never for the sync loop.
    """
    if config.compile == "auto":
        return overlap and device.type == "cuda" and BACKBONES[config.net.backbone].deep
    if config.compile == "yes":
        require_compiler(device)
    return config.compile == "yes"


def pick_workers(config: RunConfig, device: torch.device, kind: ObsKind, overlap: bool) -> int:
    """Threads that share a learner step: two for images on a CPU with two cores and more, else one.

    One, too, where acting overlaps with few passes over the data: then the actor needs the other core.
    """
    small = kind != "image" or config.net.backbone == "mlp"
    if device.type == "cuda" or small or (overlap and config.data.reuse <= 2):
        return 1
    return min(WORKERS, cores(), config.data.batch)


def pick_mode(config: RunConfig) -> Mode:
    """auto: async, which is faster; sync for on-policy data on a CPU, which overlap would make twice as old.

    There it gains at most a quarter in speed, and loses more in learning (docs/training.md). What is to be equal to
    the bit is sync.
    """
    if config.mode != "auto":
        return config.mode
    fresh = config.data.kind == "on-policy" and pick_device(config.device).type == "cpu"
    return "sync" if fresh or config.checkpoint.exact else "async"


def pick_group_size(env: EnvConfig, groups: int) -> int:
    """env.group_size, which must divide num_envs; 0: num_envs / `groups`, or all where that is not whole."""
    if not env.group_size:
        return env.num_envs // groups if env.num_envs % groups == 0 else env.num_envs
    if env.num_envs % env.group_size:
        divisors = [d for d in range(1, env.num_envs + 1) if env.num_envs % d == 0]
        near = min(divisors, key=lambda d: abs(d - env.group_size))
        raise UserError(
            f"env.group_size must divide env.num_envs {env.num_envs}, got {env.group_size}; the nearest is {near}"
        )
    return env.group_size
