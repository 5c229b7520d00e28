"""What runs on a node of a Ray cluster: a run's process, and a look at the node. Imports nothing heavy."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from casa.engines.cluster.version import require_same_code
from casa.errors import UserError
from casa.experiments.child import LOST, Process


class Job:
    """A run's process, on its node. `run` returns when it has ended; the rest is called meanwhile."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(
        self, args: Sequence[str], log: Path, environment: Mapping[str, str], cwd: str, token: Path, code: str
    ) -> int:
        """The exit status of `casa ARGS`. `cwd` is used where the node has it; for the rest see `look`."""
        look(token, code)  # this node may have come later
        with self._lock:
            if self._stopped:
                return LOST
            # The process is told when the thread that started it dies, so this one waits for it.
            self._process = Process(args, log, environment, cwd if os.path.isdir(cwd) else None)
        return self._process.wait()

    def stop(self) -> None:
        """Ask it to save and exit."""
        with self._lock:
            self._stopped = True
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """End it at once."""
        with self._lock:
            self._stopped = True
        if self._process is not None:
            self._process.kill()


def look(token: Path, code: str) -> None:
    """UserError if this node does not see the file `token`, or has other code than `code`."""
    if not token.exists():
        raise UserError(f"it does not see {token.parent}: --dir must be on storage that all nodes share")
    require_same_code(code)
