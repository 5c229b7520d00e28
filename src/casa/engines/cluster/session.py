"""The connection to Ray: start or join a cluster, and turn Ray's failures into sentences."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterator
from typing import Any

from casa.config.fields import RunConfig
from casa.errors import UserError, describe
from casa.runtime.machine import cores

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send nothing to Ray's makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the behaviour that Ray will have, without its warning
}
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def import_ray() -> Any:
    """The module; UserError if it is not installed."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UserError("engine 'ray' needs Ray; install it with: pip install 'casa-rl[ray]'") from None
    return ray


def join(address: str, cpus: int) -> bool:
    """Connect this process to Ray, unless it is: at `address` or RAY_ADDRESS, else started here with so many cores.

    Returns whether `ray.shutdown` should end what was started.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS", "")
    size = {} if address else {"num_cpus": cpus, "include_dashboard": False}
    try:
        with _signals_blocked():
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **size)
    except Exception as error:
        where = f"cannot join the Ray cluster at {address}" if address else "cannot start Ray on this machine"
        raise UserError(f"{where}: {describe(error)}") from None
    return True


def connect(config: RunConfig) -> bool:
    """`join` for a run; UserError if the cluster is too small for it."""
    ray, cluster = import_ray(), config.cluster
    needed = {"CPU": math.ceil(cluster.actors * cluster.actor_cpus) + cluster.learners - 1}
    if cluster.actor_gpus:
        needed["GPU"] = math.ceil(cluster.actors * cluster.actor_gpus)
    # A cluster on this machine is for this run alone, so its size is what the run asks for.
    owned = join(cluster.address, max(cores(), needed["CPU"]))
    has = ray.cluster_resources()
    for kind, count in needed.items():
        if has.get(kind, 0) < count:
            if owned:
                ray.shutdown()
            raise UserError(
                f"cluster.actors {cluster.actors} and cluster.learners {cluster.learners} need {count} {kind}s, and "
                f"the Ray cluster has {has.get(kind, 0):g}; use fewer, or a smaller cluster.actor_{kind.lower()}s"
            )
    return owned


def is_lost(error: BaseException) -> bool:
    """Whether a call failed because its process or its node is gone, or what it returned is lost with them."""
    from ray import exceptions as ex

    gone = (ex.RayActorError, ex.NodeDiedError, ex.WorkerCrashedError, ex.OutOfMemoryError, ex.ObjectLostError)
    never = (ex.TaskUnschedulableError, ex.ActorUnschedulableError)  # its node was gone before it could start
    return isinstance(error, (*gone, *never)) and "No module named" not in str(error)


def explained(error: BaseException, who: str) -> BaseException:
    """What to raise for an error of a call that is not `is_lost`."""
    from ray import exceptions as ex

    if isinstance(error, ex.RayTaskError) and error.cause is not None:
        cause: BaseException = error.cause
        if isinstance(cause, (ex.ObjectStoreFullError, ex.OutOfDiskError)):
            error = cause
        elif isinstance(cause, UserError):
            return type(cause)(f"{who}: {cause}")
        else:
            return RuntimeError(f"{who}: {describe(cause)}")
    if isinstance(error, (ex.ObjectStoreFullError, ex.OutOfDiskError)):
        return UserError(
            f"{who}: Ray's object store is full; start Ray with a larger --object-store-memory, "
            "or use fewer cluster.actors"
        )
    if "No module named" in str(error):
        missing = str(error).rsplit("No module named", 1)[1].split("\n")[0].strip()
        return UserError(f"{who}: its node has no module {missing}: install the same packages on every node")
    return error


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Processes that start here ignore signals to the whole group (Ctrl-C, `timeout`): those are for the run alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
