"""Two threads on one CUDA device: order between their streams, copies to and from the host, and CUDA graphs.

On a CPU everything here is a no-op or trivial, so that callers have one code path.
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

_CAPTURE = threading.Lock()  # one graph capture or warm-up call at a time in this process
_WARM_UP = 3


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream with priority over the default stream; None on a CPU."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def on(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """Context that makes `stream` current; None: no change."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work in all streams."""
    if device.type == "cuda":
        with _CAPTURE:  # CUDA forbids it while any stream is being captured
            torch.cuda.synchronize(device)


class Fence:
    """A point in one stream that another stream waits for, without blocking the host."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        """Mark the work queued in the current stream so far."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Make later work in the current stream wait for the marked work."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def passed(self) -> bool:
        """Whether the marked work is done."""
        return self._event is None or self._event.query()


class Readback:
    """Copies a small tensor to the host. The calling thread sleeps until it arrives, and wastes no core on polling."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._pinned: Tensor | None = None

    def __call__(self, x: Tensor) -> npt.NDArray[Any]:
        """x as an array; on CUDA the next call overwrites it."""
        if self._event is None:
            return x.detach().numpy()
        if self._pinned is None or self._pinned.shape != x.shape or self._pinned.dtype != x.dtype:
            self._pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self._pinned.copy_(x, non_blocking=True)
        self._event.record()
        self._event.synchronize()
        return self._pinned.numpy()


class Staging:
    """Arrays that the host fills and the device reads, uploaded in one copy.

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
        """Copy all arrays to the device in the current stream. Call `wait` before changing them on the host again."""
        if self._moved is not None:
            self._device.copy_(self._host, non_blocking=True)
            self._moved.record()

    def wait(self) -> None:
        """Wait until the last upload has been read from host memory."""
        if self._moved is not None:
            self._moved.synchronize()


class Graphed:
    """Calls f(), whose tensors must keep their addresses; on CUDA it is replayed as a graph from the fourth call on.

    `generators`: the random generators that f uses. The next call overwrites what f returned.
    """

    def __init__(
        self, f: Callable[[], Any], device: torch.device, generators: Iterable[torch.Generator] = ()
    ) -> None:
        self._f, self._generators = f, list(generators)
        self._calls_left = _WARM_UP if device.type == "cuda" else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None

    def __call__(self) -> Any:
        """Run f, or replay its graph."""
        if self._graph is not None:
            self._graph.replay()
            return self._result
        if self._calls_left == 0:
            self._capture()
            return self()
        if self._calls_left < 0:
            return self._f()
        self._calls_left -= 1
        with _CAPTURE:  # warm-up calls may compile, and compiling synchronizes the device
            return self._f()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # Kernels keep the priority of the stream in which they were captured, whichever stream replays them.
        stream = torch.cuda.current_stream()
        own = None if stream == torch.cuda.default_stream() else stream
        # thread_local: other threads keep using the device during the capture.
        with _CAPTURE, torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
            self._result = self._f()
        self._graph = graph
