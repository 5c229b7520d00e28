"""What one turn of the learner's receiving thread costs by the number of rollout workers, without their data.

    python benchmarks/cluster_costs.py --out results/cluster-costs.json

The workers are stand-ins with real calls to Ray under way that do not end; the code of the turn is the engine's own.
`benchmarks/cluster_model.py` takes these figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from casa.engines.cluster.crew import Crew, RemoteActor
from casa.engines.cluster.loop import ClusterLoop
from casa.engines.cluster.session import import_ray
from casa.runtime.machine import machine

ray = import_ray()


class Quiet:
    """A worker that never answers `collect`."""

    def collect(self) -> None:
        time.sleep(1e6)

    def update(self, weights: Any) -> None:
        pass


def seconds(call: Callable[[], object], times: int) -> float:
    """The fastest of `times` calls: other work on the machine only adds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def stand_in(count: int, handle: Any, weights: Any) -> Any:
    """A crew of so many workers, each with two calls under way and the newest weights."""
    crew: Any = Crew.__new__(Crew)
    crew.weights = lambda: weights
    crew.actors = []
    for _ in range(count):
        actor: Any = RemoteActor.__new__(RemoteActor)
        actor.crew, actor.handle, actor.version, actor._has, actor._updating = crew, handle, 0, 0, None
        actor.calls = deque((handle.collect.remote(), 800, 0.0) for _ in range(2))
        actor.share = SimpleNamespace(count=20)
        crew.actors.append(actor)
    return crew


def measure(count: int, handle: Any, weights: Any, times: int) -> dict[str, float]:
    """Seconds of the parts of a turn with `count` workers."""
    crew = stand_in(count, handle, weights)
    config = SimpleNamespace(steps=10**12, data=SimpleNamespace(seq_len=40))
    loop: Any = ClusterLoop.__new__(ClusterLoop)
    loop.system = SimpleNamespace(config=config, steps=0, sampler=SimpleNamespace(room=lambda slots: False))

    def update() -> None:
        for actor in crew.actors:
            actor.update()

    def publish() -> None:
        for actor in crew.actors:
            actor.version += 1
        update()
        ray.get([actor._updating for actor in crew.actors])

    found = {"ready": seconds(lambda: crew.ready(timeout=0.0), times)}
    found["ask"] = seconds(lambda: loop._ask(crew), times)
    publish()  # every worker has had an update before
    found["update_same_weights"] = seconds(update, times)
    for actor in crew.actors:
        actor.version += 1
    found["update_new_weights"] = seconds(update, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/cluster-costs.json"))
    options = parser.parse_args()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    facts: dict[str, Any] = {"machine": machine(torch.device("cpu")), "seconds": {}}
    for count in options.workers:
        handle = ray.remote(num_cpus=0.1, concurrency_groups={"weights": 1})(Quiet).remote()
        facts["seconds"][count] = measure(count, handle, ray.put(torch.zeros(10**6).numpy()), options.times)
        print(count, {name: f"{value * 1e3:.3f} ms" for name, value in facts["seconds"][count].items()}, flush=True)
        ray.kill(handle)
    options.out.write_text(json.dumps(facts, indent=1) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
