"""How this process uses cores and memory: PyTorch's threads, thread priorities, and reuse of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from casa.runtime.machine import cores

THREADS = torch.get_num_threads()
"""One per core, or OMP_NUM_THREADS if that is set."""
_LIMITED = "OMP_NUM_THREADS" in os.environ
_NICER = 5
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next learner step; returns False if there is no glibc.

    By default glibc returns every large block to the system, and each learner step causes thousands of page faults: up
    to a third of the learner's time on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def torch_threads(mode: str, device: torch.device) -> int:
    """Intra-op threads on a CPU: THREADS / 2 (two threads share a learner step), THREADS / 4 if async, at least 1.

    Intra-op threads busy-wait for each other: with more threads than free cores, most of their time is lost. With a GPU
    it is 1: the cores are for the environments.
    """
    if device.type == "cuda":
        return 1
    return max(THREADS // (4 if mode == "async" else 2), 1)


def allowed_cores() -> int:
    """Cores that this process should use: all that it may, or OMP_NUM_THREADS of them, as runs side by side have it."""
    return min(cores(), THREADS) if _LIMITED else cores()


Made = TypeVar("Made")


def with_low_priority(make: Callable[[], Made]) -> Made:
    """make(); threads that it starts have a lower priority than the rest of this process.

    On Linux a thread inherits the niceness of its parent thread and cannot lower it again, so `make` runs in a
    temporary thread.
    """

    def work() -> Made:
        if sys.platform.startswith("linux"):
            os.nice(_NICER)
        return make()

    found: Future[Made] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    # A daemon: an environment whose constructor hangs must not keep the process alive after Ctrl-C.
    threading.Thread(target=run, name="casa-make", daemon=True).start()
    return found.result()


def prepare(mode: str, device: torch.device) -> None:
    """Set up threads, memory and cuDNN for a loop; call it before the first tensor is created."""
    keep_freed_memory()
    torch.set_num_threads(torch_threads(mode, device))
    if device.type == "cuda":  # async: fastest algorithm by autotuning; sync: the same one every time
        torch.backends.cudnn.benchmark = mode == "async"
        torch.backends.cudnn.deterministic = mode == "sync"
