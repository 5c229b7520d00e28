"""Work of two threads on one CUDA device: order between their streams, reading back, and graphs of static work.

On a CPU every one of these is nothing at all, so that the code that uses them is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CAPTURE = threading.Lock()  # one capture, or first calls of what will be captured, at a time in this process
_WARM_UP = 3


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream whose kernels go before those of the default stream; None on a CPU."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def on(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """Work in a stream; None: in the current one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given, in all streams."""
    if device.type == "cuda":
        with _CAPTURE:  # CUDA forbids it while any stream is captured
            torch.cuda.synchronize(device)


class Fence:
    """A point in one stream's work that another stream waits for; the host goes on."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        """The work given to the current stream so far is what `wait` waits for."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """What the current stream is given from now on comes after the mark."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def passed(self) -> bool:
        """Whether the marked work is done."""
        return self._event is None or self._event.query()


class Readback:
    """A small tensor to the host. The calling thread sleeps until it is there: no core is burnt by polling."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._pinned: Tensor | None = None

    def __call__(self, x: Tensor) -> npt.NDArray[Any]:
        """x as an array; on CUDA it is overwritten by the next call."""
        if self._event is None:
            return x.detach().numpy()
        if self._pinned is None or self._pinned.shape != x.shape or self._pinned.dtype != x.dtype:
            self._pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self._pinned.copy_(x, non_blocking=True)
        self._event.record()
        self._event.synchronize()
        return self._pinned.numpy()


class Staging:
    """Arrays that the host fills and the device reads, moved by one copy.

    `host[name]` is a NumPy view of pinned memory, `device[name]` a tensor; on a CPU they are the same memory.
    """

    def __init__(self, device: torch.device, fields: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in fields.items()}
        offsets, total = {}, 0
        for name, size in sizes.items():
            offsets[name] = total
            total += -(-size // 16) * 16
        cuda = device.type == "cuda"
        self._host = torch.zeros(max(total, 1), dtype=torch.uint8, pin_memory=cuda)
        self._device = torch.zeros_like(self._host, device=device) if cuda else self._host
        self._moved = torch.cuda.Event(blocking=True) if cuda else None
        self.host: dict[str, npt.NDArray[Any]] = {}
        self.device: dict[str, Tensor] = {}
        for name, (shape, dtype) in fields.items():
            part = slice(offsets[name], offsets[name] + sizes[name])
            self.host[name] = self._host[part].view(dtype).view(shape).numpy()
            self.device[name] = self._device[part].view(dtype).view(shape)

    def upload(self) -> None:
        """Copy all arrays, in the current stream; before the host changes them again it must `wait`."""
        if self._moved is not None:
            self._device.copy_(self._host, non_blocking=True)
            self._moved.record()

    def wait(self) -> None:
        """Until the last upload has left the host's memory."""
        if self._moved is not None:
            self._moved.synchronize()


class Graphed:
    """f(), whose tensors all stay where they are: on CUDA from its fourth call on as one graph, launched at once.

    Random numbers come from `generators`. What f returns is overwritten by the next call.
    """

    def __init__(
        self, f: Callable[[], Any], device: torch.device, generators: Iterable[torch.Generator] = ()
    ) -> None:
        self._f, self._generators = f, list(generators)
        self._calls_left = _WARM_UP if device.type == "cuda" else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None

    def __call__(self) -> Any:
        """Run f, or replay it."""
        if self._graph is not None:
            self._graph.replay()
            return self._result
        if self._calls_left == 0:
            self._capture()
            return self()
        if self._calls_left < 0:
            return self._f()
        self._calls_left -= 1
        with _CAPTURE:  # the first calls may compile, and compiling waits for the device
            return self._f()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # Kernels keep the priority of the stream in which they were recorded, whichever they are launched in later.
        stream = torch.cuda.current_stream()
        own = None if stream == torch.cuda.default_stream() else stream
        # Other threads go on giving work to the device meanwhile.
        with _CAPTURE, torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
            self._result = self._f()
        self._graph = graph
