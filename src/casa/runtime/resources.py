"""What the machine supports: device, compiler, bf16, memory; and whether a run fits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from casa.errors import UserError


def pick_device(choice: str) -> torch.device:
    """The device for `choice` (cpu, cuda, auto); auto: CUDA if available."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' is not available on this machine; use 'cpu'")
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def require_compiler(device: torch.device) -> None:
    """Compile a tiny function, so that a missing compiler is an error before training starts."""
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(2, device=device))
    except Exception as error:  # torch raises many types here
        raise cannot_compile(error) from error


def cannot_compile(error: Exception) -> UserError:
    """What to say of an error of the compiler: its first line."""
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return UserError(f"compile 'yes' does not work on this machine, use 'auto' or 'no': {reason}")


def has_cpu_bf16() -> bool:
    """Whether the processor has bf16 dot products (AVX512-BF16 or AMX); without them bf16 is slower than fp32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def available_bytes(device: torch.device) -> int:
    """Free memory of a device, in bytes; on the CPU also within the limit of this container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_available_here(), _available_in_container())


def _available_in_container() -> int:
    try:
        limit, used = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii")) for name in ("max", "current")
        )
    except (OSError, ValueError):  # no control groups, or the limit is "max"
        return sys.maxsize
    return max(limit - used, 0)


def _available_here() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(
    needed: int,
    device: torch.device,
    what: str,
    advice: str = "lower data.replay_frames, env.num_envs or data.seq_len",
) -> str:
    """A message with the memory that `what` needs; UserError if that is over 90% of the free memory."""
    free = available_bytes(device)
    if needed > 0.9 * free:
        raise UserError(
            f"{what} needs {gib(needed)} on {device.type}, but only {gib(free)} are free; {advice}"
        )
    return f"{what}: {gib(needed)} of {gib(free)} free on {device.type}"


def gib(count: float) -> str:
    """Bytes as text, in GiB or MiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: NumPy's, PyTorch's on the CPU, or PyTorch's on a GPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
