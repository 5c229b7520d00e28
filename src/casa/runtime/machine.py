"""Describes the machine on which a measurement was taken."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_jobs() -> int:
    """Runs at a time: one on a GPU, as many as there are cores without one."""
    return 1 if torch.cuda.is_available() else cores()


def machine(device: torch.device) -> dict[str, Any]:
    """Context of a speed measurement: processor, cores, memory, versions, and the system load before it."""
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
    }


def processor() -> str:
    """The processor's name, as far as the system reports it."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_rss_bytes() -> int:
    """Peak resident memory of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
