"""A run over a cluster: the local system, whose actors are rollout workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from casa.config.fields import RunConfig
from casa.engines.build import Note, assemble
from casa.engines.cluster.crew import Crew
from casa.engines.cluster.learners import SharedLearner
from casa.engines.cluster.session import connect, import_ray
from casa.engines.resolve import GROUPS
from casa.engines.system import System
from casa.learn.learner import Learner
from casa.nn import Network
from casa.rollout.actor import Actor


@dataclass(eq=False)
class ClusterSystem(System):
    """Ring, sampler, learner and counters of a run whose environments belong to a crew of workers."""

    crew: Crew = field(kw_only=True)
    end: Callable[[], None] = field(kw_only=True)
    """Closes the connection to Ray."""
    built: bool = False
    """Whether the workers have built their parts."""

    def begin(self) -> None:
        """Start new episodes; the first time, the workers build their parts for the state that was restored."""
        if not self.built:
            self.crew.build()
            self.built = True
        super().begin()

    def cut(self, wait: bool = True) -> None:
        """Truncate every running episode. What workers have not sent is lost: the ring may have no room for it."""
        for actor in self.crew.actors:
            actor.calls.clear()
        super().cut(wait)

    def stats(self) -> dict[str, Any]:
        """Metrics of the sampler and of the workers."""
        found = {**super().stats(), **self.crew.stats()}
        return found | {"learner_restarts": self.learner.restarts} if isinstance(self.learner, SharedLearner) else found

    def silent(self) -> tuple[float, list[int]]:
        """(how many seconds a worker has not answered, its environments); the one that was silent for longest."""
        actor = max(self.crew.actors, key=lambda actor: actor.waiting)
        return actor.waiting, actor.share.envs.tolist()

    def close(self) -> None:
        """End the workers, and what was started of Ray."""
        self.crew.close()
        if isinstance(self.learner, SharedLearner):
            self.learner.disband()
        self.end()


def build_cluster(config: RunConfig, note: Note = lambda text: None) -> ClusterSystem:
    """Start the workers of a run, and build everything else around the spec of their environments."""
    ray = import_ray()
    config.validate()  # again, since the device is known now
    overlap = GROUPS[config.mode] > 1
    note("connecting to Ray")
    if config.mode == "sync" and config.cluster.actors > 1:
        note("mode sync waits for every worker in each step of the environments; --mode async is faster")
    owned = connect(config)
    crew = Crew(config, note)
    try:
        note(f"starting {config.cluster.actors} rollout workers with {config.env.num_envs} environments")
        spec = replace(crew.start(), num_envs=config.env.num_envs, group_size=0)

        def learner(network: Network, config: RunConfig, workers: int, fall_back: bool) -> Learner:
            if config.cluster.learners == 1:
                return Learner(network, config, workers, fall_back)
            return SharedLearner(network, config, spec, note, fall_back)

        system = assemble(config, spec, [], overlap, note, make_learner=learner)
        cluster = ClusterSystem(**vars(system), crew=crew, end=ray.shutdown if owned else lambda: None)
        cluster.actors = cast(list[Actor], crew.actors)  # they have what the loops need of actors
        crew.system = cluster
        return cluster
    except BaseException:
        crew.close()
        if owned:
            ray.shutdown()
        raise
