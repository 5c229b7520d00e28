"""`python -m casa.experiments.child ARGS` is `casa ARGS` in a process that is stopped when its parent dies.

A killed scheduler would otherwise leave its runs behind, and the next one would find their directories in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT = "CASA_PARENT"
"""Variable with the process id of the scheduler."""


def main() -> None:
    """Ask Linux for SIGTERM at the parent's death, at which a run saves and exits; then run the command."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ.get(PARENT, os.getppid())):  # it died before the request
        sys.exit(1)
    runpy.run_module("casa", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
