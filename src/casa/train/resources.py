"""What the machine offers: device, precision, memory; and whether a run fits."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from casa.envs.atari import cores
from casa.envs.config import EnvConfig
from casa.errors import UserError
from casa.schema import RunConfig


def pick_device(choice: str) -> torch.device:
    """auto: CUDA where there is one."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' is not available on this machine; use 'cpu'")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def pick_bf16(config: RunConfig, device: torch.device, backbone: str) -> bool:
    """auto: bf16 for image networks where the hardware multiplies it natively, else fp32."""
    if config.precision != "auto":
        return config.precision == "bf16"
    return backbone not in ("mlp", "grid") and (device.type == "cuda" or has_cpu_bf16())


def pick_compile(config: RunConfig, device: torch.device, backbone: str, overlap: bool) -> bool:
    """auto: on CUDA where the network is deep enough to gain more than the minute that compiling takes.

    Kernels are chosen by their speed, and so not always the same ones: not for the loop that is deterministic.
    """
    if config.compile == "auto":
        return overlap and device.type == "cuda" and backbone == "impala-deep"
    if config.compile == "yes":
        require_compiler(device)
    return config.compile == "yes"


def require_compiler(device: torch.device) -> None:
    """Compile something small, before anything is learned that a missing compiler would end."""
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(2, device=device))
    except Exception as error:  # torch has many for this
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"compile 'yes' does not work on this machine, use 'auto' or 'no': {reason}") from error


def pick_workers(config: RunConfig, device: torch.device, backbone: str, overlap: bool) -> int:
    """Threads that share a learner step: two for images on a CPU with two cores and more, else one.

    One, too, where acting overlaps with few passes over the data: then the actor needs the other core.
    """
    if device.type == "cuda" or backbone in ("mlp", "grid") or (overlap and config.data.reuse <= 2):
        return 1
    return min(WORKERS, cores(), config.data.batch)


def has_cpu_bf16() -> bool:
    """Whether the processor has bf16 dot products (AVX512-BF16 or AMX); without them bf16 is slower than fp32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def pick_mode(config: RunConfig) -> str:
    """auto: async, which is faster; sync for on-policy data on a CPU, which overlap would make twice as old.

    There it gains at most a quarter in speed, and loses more in learning (docs/training.md). What is to be equal to
    the bit is sync.
    """
    if config.mode != "auto":
        return config.mode
    fresh = config.data.kind == "on-policy" and pick_device(config.device).type == "cpu"
    return "sync" if fresh or config.checkpoint.exact else "async"


WORKERS = 2
GROUPS = {"sync": 1, "async": 2}
"""Parts of the environments that are served in turn: while one is served, the other runs."""


def pick_parts(env: EnvConfig, groups: int) -> int:
    """num_envs / batch, which must be whole; the default is `groups`, or less where that does not divide them."""
    if not env.batch:
        return groups if env.num_envs % groups == 0 else 1
    if env.num_envs % env.batch:
        divisors = [d for d in range(1, env.num_envs + 1) if env.num_envs % d == 0]
        near = min(divisors, key=lambda d: abs(d - env.batch))
        raise UserError(f"env.batch must divide env.num_envs {env.num_envs}, got {env.batch}; the nearest is {near}")
    return env.num_envs // env.batch


def available_bytes(device: torch.device) -> int:
    """Memory that can still be taken on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(needed: int, device: torch.device, what: str) -> str:
    """A sentence that says how much `what` takes; UserError where that leaves less than a tenth of what is free."""
    free = available_bytes(device)
    if needed > 0.9 * free:
        raise UserError(
            f"{what} needs {gib(needed)} on {device.type}, but only {gib(free)} are free; "
            "lower data.replay_frames, env.num_envs or data.seq_len"
        )
    return f"{what}: {gib(needed)} of {gib(free)} free on {device.type}"


def gib(count: float) -> str:
    """Bytes in GiB or MiB, for people."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
