"""How this process uses cores and memory: threads of the tensor library, and what becomes of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

THREADS = torch.get_num_threads()
"""One a core, or what OMP_NUM_THREADS says."""
_NICER = 5
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next learner step; False where there is no glibc.

    By default it returns every large block to the system, and each learner step then faults thousands of pages in
    again: up to a third of the learner's time on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def torch_threads(mode: str, device: torch.device) -> int:
    """Half of THREADS, since two threads share a learner step; a quarter where acting overlaps with it; at least one.

    Threads of one operation wait for each other, busily: with more of them than free cores, most of their time. Beside
    a GPU it is one: the cores belong to the environments.
    """
    if device.type == "cuda":
        return 1
    return max(THREADS // (4 if mode == "async" else 2), 1)


Made = TypeVar("Made")


def with_low_priority(make: Callable[[], Made]) -> Made:
    """make(), whose threads yield their cores to the others of this process.

    On Linux a thread inherits the niceness of the thread that creates it, and niceness cannot be lowered again: so
    `make` runs in a thread of its own.
    """

    def work() -> Made:
        if sys.platform.startswith("linux"):
            os.nice(_NICER)
        return make()

    with ThreadPoolExecutor(1) as one:
        return one.submit(work).result()


def prepare(mode: str, device: torch.device) -> None:
    """Set this process up for a loop, before its first tensor."""
    keep_freed_memory()
    torch.set_num_threads(torch_threads(mode, device))
    if device.type == "cuda":  # the fastest convolution of several, or the same one every time
        torch.backends.cudnn.benchmark = mode == "async"
        torch.backends.cudnn.deterministic = mode == "sync"
