"""A whole learner step as one compiled graph: forward and backward pass, and the optimizer."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from casa.runtime.resources import cannot_compile

MOST_RUNS = 1000
"""Compiled versions of a function in one process."""


def can_compile_steps() -> bool:
    """Whether this PyTorch can compile a function that calls `torch.autograd.grad`, and there is a C++ compiler."""
    return hasattr(torch._dynamo.config, "trace_autograd_ops") and any(map(shutil.which, ("c++", "g++", "clang++")))


class Compiled:
    """Calls f(), compiled by the first call; if the compiler fails: f() itself with `fall_back`, else an error.

    On a CPU a small learner step is hundreds of operations of a few microseconds each, most of which is overhead.
    """

    def __init__(self, f: Callable[[], Tensor], fall_back: bool) -> None:
        self._f, self._fall_back = f, fall_back
        self._call: Callable[[], Tensor] | None = None

    def __call__(self) -> Tensor:
        """f()."""
        return self._first() if self._call is None else self._call()

    def _first(self) -> Tensor:
        torch._dynamo.config.trace_autograd_ops = True  # also for what it recompiles
        # Each run in a process compiles the same functions for networks of its own; the default is 8.
        torch._dynamo.config.recompile_limit = MOST_RUNS
        self._call = torch.compile(self._f, dynamic=False, fullgraph=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of cached functions, which are constant here
                return self._call()
        except Exception as error:  # torch raises many types here
            if not self._fall_back:
                raise cannot_compile(error) from error
            self._call = self._f
            return self._f()
