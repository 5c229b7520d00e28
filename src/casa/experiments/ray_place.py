"""Runs as processes on the nodes of a Ray cluster. All nodes share the storage of the runs' directories."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from casa.engines.cluster.session import explained, import_ray, is_lost, join
from casa.engines.cluster.version import code_version
from casa.errors import UserError
from casa.experiments.child import LOST
from casa.experiments.places import Where
from casa.experiments.ray_job import Job, look
from casa.experiments.scheduler import Running
from casa.runtime.machine import cores

ANSWER = 60.0
"""Seconds in which a node must answer."""
_COUNTED = 5.0  # seconds for which the number of slots is remembered


class RayPlace:
    """The nodes of a Ray cluster with room for a run: so many cores, and GPUs or a share of one.

    A run that is lost with its node has status LOST; the scheduler resumes it where there is room.
    """

    def __init__(self, jobs: int, needs: dict[str, float], token: Path) -> None:
        self._jobs, self._needs, self._token = jobs, needs, token
        self.scratch: Path | None = token.parent
        self._environment = {"OMP_NUM_THREADS": str(max(int(needs["CPU"]), 1))}
        if not needs["GPU"]:
            self._environment["CUDA_VISIBLE_DEVICES"] = ""
        self._counted, self._room = 0.0, 0

    @classmethod
    @contextmanager
    def open(cls, where: Where, directory: Path, gpu: bool, note: Callable[[str], None]) -> Iterator[RayPlace]:
        """Connect; UserError if no node has room for a run, or if one that has does not see `directory`."""
        ray = import_ray()
        note("connecting to Ray")
        owned = join(where.address, cores())
        token = directory.absolute() / f".cluster-{uuid.uuid4().hex}"
        try:
            needs = _needs(where, [node["Resources"] for node in _alive()], gpu)
            nodes = [node for node in _alive() if _fits(node["Resources"], needs)]
            if not nodes:
                asked = " and ".join(f"{count:g} {kind}s" for kind, count in needs.items())
                raise UserError(f"a run needs {asked}, which no node of the cluster has; see --run-cpus and --run-gpus")
            token.parent.mkdir(parents=True, exist_ok=True)
            token.touch()
            note(f"checking that every node with room sees {token.parent}")
            _check(nodes, token)
            yield cls(where.jobs, needs, token)
        finally:
            token.unlink(missing_ok=True)
            if owned:
                ray.shutdown()

    @property
    def slots(self) -> int:
        """As many runs as fit on the nodes that are there now, at most `--jobs`."""
        if time.monotonic() - self._counted > _COUNTED or not self._counted:
            self._room = sum(_fits(node["Resources"], self._needs) for node in _alive())
            self._counted = time.monotonic()
        return min(self._jobs or self._room, self._room)

    def start(self, args: Sequence[str], log: Path) -> Running:
        """Start a run where there is room; it is stopped if this process or its node's Ray dies."""
        options = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"], "max_concurrency": 3}
        handle = import_ray().remote(**options, scheduling_strategy="SPREAD")(Job).remote()
        here = log.absolute(), self._environment, os.getcwd(), self._token, code_version()
        return _RemoteJob(handle, handle.run.remote(list(args), *here))


class _RemoteJob:
    """A `Job` as the scheduler sees it."""

    def __init__(self, handle: Any, call: Any) -> None:
        self._handle, self._call = handle, call
        self._ready = handle.__ray_ready__.remote()
        self._status: int | None = None

    def poll(self) -> int | None:
        ray = import_ray()
        if self._status is None and ray.wait([self._call], timeout=0)[0]:
            self._status = LOST
            try:
                self._status = ray.get(self._call)
            except Exception as error:
                if not is_lost(error):
                    raise explained(error, "a node") from None
            finally:
                ray.kill(self._handle)  # frees its cores
        return self._status

    def stop(self) -> None:
        if import_ray().wait([self._ready], timeout=0)[0]:
            self._handle.stop.remote()
        else:
            self.kill()  # it waits for room on a node

    def kill(self) -> None:
        ray = import_ray()
        if self._status is None:
            if ray.wait([self._ready], timeout=0)[0]:
                with suppress(Exception):  # lost, or it does not answer
                    ray.get(self._handle.kill.remote(), timeout=ANSWER)
            ray.kill(self._handle)
            self._status = LOST


def _check(nodes: Sequence[dict[str, Any]], token: Path) -> None:
    """`look` on every node at once; UserError that names the first node that complains."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = import_ray()
    remote, calls = ray.remote(num_cpus=0, max_retries=0)(look), []
    for node in nodes:
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        calls.append(remote.options(scheduling_strategy=here).remote(token, code_version()))
    for node, call in zip(nodes, calls, strict=True):
        try:
            ray.get(call, timeout=ANSWER)
        except Exception as error:
            who = f"node {node['NodeManagerAddress']}"
            if isinstance(error, ray.exceptions.GetTimeoutError):
                raise UserError(f"{who} does not answer") from None
            if not is_lost(error):
                raise explained(error, who) from None


def _alive() -> list[dict[str, Any]]:
    return [node for node in import_ray().nodes() if node["Alive"]]


def _fits(has: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many runs a node has room for."""
    return min(int(has.get(kind, 0.0) / count + 1e-6) for kind, count in needs.items() if count)


def _needs(where: Where, nodes: Sequence[Mapping[str, float]], gpu: bool) -> dict[str, float]:
    """Cores and GPUs of a run. By default one GPU and its part of the cores, or one core where there are no GPUs.

    `gpu`: whether the run can use one.
    """
    with_gpus = [node for node in nodes if node.get("GPU")] if gpu else []
    gpus = where.run_gpus if where.run_gpus >= 0 else float(bool(with_gpus))
    if gpus > 1 and gpus != int(gpus):
        raise UserError(f"--run-gpus must be a part of one GPU or a whole number, got {gpus:g}")
    shares = [node.get("CPU", 0.0) / node["GPU"] for node in with_gpus]
    cpus = where.run_cpus or max(int(gpus * min(shares, default=0.0)), 1)
    return {"CPU": cpus, "GPU": gpus}
