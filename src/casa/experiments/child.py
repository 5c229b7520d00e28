"""`python -m casa.experiments.child ARGS` is `casa ARGS` in a process that is stopped when its parent dies.

A killed scheduler would otherwise leave its runs behind, and the next one would find their directories in use.
Imports nothing heavy: on a cluster, each run has a process that only waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PARENT = "CASA_PARENT"
"""Variable with the process id of the scheduler."""
LOST = 1000
"""The status of a job whose process is gone without one: its machine was lost."""


class Process:
    """`casa ARGS` in a process of this machine."""

    def __init__(self, args: Sequence[str], log: Path, environment: Mapping[str, str], cwd: str | None = None) -> None:
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "casa.experiments.child", *args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", PARENT: str(os.getpid()), **environment},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C reaches the scheduler alone, which stops its jobs
            )

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """The exit status, once it has ended."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask it to save and exit."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Ask Linux for SIGTERM at the parent's death, at which a run saves and exits; then run the command."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the parent may be a worker of Ray that blocks them
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ.get(PARENT, os.getppid())):  # it died before the request
        sys.exit(1)
    runpy.run_module("casa", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
