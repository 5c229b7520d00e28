"""One process per environment: Gymnasium's `AsyncVectorEnv`, with errors in one sentence and an end that is certain."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util  # noqa: F401  (its exit function must be registered before ours, so that it runs later)
import select
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker

from casa.envs.types import Abandoned, EnvError

CLOSING = 2.0
"""Seconds that the processes get to close their environments before they are killed."""
_LOOK = 500  # milliseconds between two looks at `abandoned` while waiting


class Processes:
    """Waiting for processes, and ending them, for a vector environment that has them.

    The processes ignore the signals that stop a run: only this process may end them. `close` never raises.
    """

    parent_pipes: list[Connection]
    """One for each process; its answers come through it."""
    processes: list[Any]
    abandoned = False
    """Set by another thread: wait no longer."""

    def _started(self) -> None:
        """Call this when the processes run."""
        self._pollers: list[select.poll] = []
        for pipe in self.parent_pipes:
            self._pollers.append(select.poll())
            self._pollers[-1].register(pipe.fileno(), select.POLLIN)
        _open.add(self)

    def environment_of(self, process: int) -> int:
        """The environment that a process runs, or was running when it died."""
        return process

    def silent(self) -> list[int]:
        """The environments that have not answered yet; may be called from another thread than the one that waits."""
        poller, numbers = select.poll(), [pipe.fileno() for pipe in self.parent_pipes if not pipe.closed]
        for number in numbers:
            poller.register(number, select.POLLIN)
        answered = {number for number, _ in poller.poll(0)}
        return [self.environment_of(index) for index, number in enumerate(numbers) if number not in answered]

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask the processes to close, and kill those that have not done so after `CLOSING` seconds."""
        end = time.monotonic() + (0 if terminate or self.abandoned else CLOSING)
        for pipe in self.parent_pipes:
            with contextlib.suppress(OSError):  # closed already, or its process is dead
                pipe.send(("close", None))
        for process in self.processes:
            process.join(max(end - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.parent_pipes:
            pipe.close()
        _open.discard(self)

    def _wait(self) -> None:
        """Wait until every process has answered; `Abandoned` if that was asked for meanwhile."""
        for poller in self._pollers:
            while not poller.poll(_LOOK):
                if self.abandoned:
                    raise Abandoned


class Workers(Processes, AsyncVectorEnv):
    """N environments in N processes. An error in a process is raised here without Gymnasium's tracebacks."""

    def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP, worker=_work)
        self._started()

    def reset_wait(self, timeout: float | None = None) -> Any:
        """Wait for the resets; `Abandoned` if that was asked for meanwhile."""
        self._wait()
        return super().reset_wait(timeout)

    def step_wait(self, timeout: float | None = None) -> Any:
        """Wait for the steps; `Abandoned` if that was asked for meanwhile."""
        self._wait()
        return super().step_wait(timeout)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = list(successes).count(False)
        errors: dict[int, BaseException] = {}
        for _ in range(failed):
            index, kind, value, _ = self.error_queue.get()
            errors[index] = value if isinstance(value, BaseException) else kind(value)
            self.parent_pipes[index].close()
        if errors:
            first = errors[min(errors)]
            raise first if isinstance(first, EnvError) else EnvError(f"environment {min(errors)}: {first}")


_worker = False


def is_worker() -> bool:
    """Whether this process runs environments for another one."""
    return _worker


def become_worker() -> None:
    """This process runs environments: signals to the whole group (Ctrl-C, a closed terminal) are for the run alone."""
    global _worker
    _worker = True
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _work(*arguments: Any) -> None:
    become_worker()
    with contextlib.suppress(OSError, EOFError):  # the main process was killed
        _async_worker(*arguments)


_open: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At exit `multiprocessing` sends SIGTERM, which the workers ignore, and waits for them."""
    for workers in list(_open):
        workers.close()
