"""Where the runs of a study or a suite are placed: the flags, and the `Place` that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from casa.config.fields import Engine
from casa.errors import UserError

if TYPE_CHECKING:
    from casa.experiments.scheduler import Place
    from casa.experiments.studies import Planned


@dataclass(frozen=True, kw_only=True)
class Where:
    """Flags of `casa experiment` and `casa suite`."""

    jobs: int = 0
    """Runs at a time; 0: as many as there are cores on a CPU, one on a GPU; with engine ray, as many as fit."""
    engine: Engine = "local"
    """local: runs are processes of this machine; ray: of all nodes of a Ray cluster that share the storage of --dir."""
    address: str = ""
    """Address of a running Ray cluster; empty: RAY_ADDRESS if that is set, else a new one on this machine."""
    run_cpus: float = 0.0
    """With engine ray: cores that a run needs; 0: 1, or its part of the cores of a node with GPUs."""
    run_gpus: float = -1.0
    """With engine ray: GPUs that a run needs, 0.25 for four runs on one; -1: 1 where there are GPUs, else 0."""


@contextmanager
def open_place(
    where: Where, directory: Path, runs: Sequence[Planned], note: Callable[[str], None]
) -> Iterator[Place]:
    """The place that is asked for, for these runs in `directory`. `note` is told what takes time."""
    for name in ("jobs", "run_cpus"):
        if getattr(where, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} must be >= 0, got {getattr(where, name)}")
    if where.engine == "ray":
        from casa.experiments.ray_place import RayPlace

        gpu = any(run.config.device != "cpu" for run in runs)
        with RayPlace.open(where, directory, gpu, note) as cluster:
            yield cluster
        return
    for name in ("address", "run_cpus", "run_gpus"):
        if getattr(where, name) != getattr(Where, name):
            raise UserError(f"--{name.replace('_', '-')} needs --engine ray, got --engine local")
    from casa.experiments.scheduler import LocalPlace
    from casa.runtime.machine import default_jobs

    yield LocalPlace(where.jobs or default_jobs())
