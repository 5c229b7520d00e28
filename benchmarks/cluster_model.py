"""A discrete-event model of the Ray engine: steps/s, bottleneck and policy lag for any number of rollout workers.

It has the engine's own rules. A worker plays calls, each for one sequence of each of its environments, and has at most
two. Results pass the learner's network link one after the other. One thread of the learner receives them, asks for more
while the backlog is small enough, and sends weights. Another thread learns. Workers are lost and started again.

`benchmarks/cluster_scale.py` gives it measured inputs, and compares it with measurements.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

DEPTH = 2
"""Calls that a worker has at most, as in casa.engines.cluster.crew."""
POLL = 0.02
"""Seconds after which the receiving thread looks again, as in casa.engines.cluster.loop."""


@dataclass(frozen=True)
class Cluster:
    """What is measured or assumed. Times in seconds, sizes in bytes."""

    rate: float
    """Steps/s of a worker that never waits."""
    envs: int
    """Environments of a worker."""
    seq_len: int
    batch: int
    """Sequences of a learner step."""
    reuse: float
    learner: float
    """A learner step."""
    receive: float = 0.0
    """The receiving thread, for each step of a result."""
    message: float = 0.0
    """The same, for each result and the call that replaces it."""
    look: float = 0.0
    """The same, for each worker in each turn: whether it is ready, whether to ask."""
    send: float = 0.0
    """The same, for each worker that gets new weights."""
    step_bytes: float = 0.0
    weights_bytes: float = 0.0
    publish_every: int = 1
    """Learner steps."""
    pull_every: int = 64
    """Steps of each environment."""
    bandwidth: float = float("inf")
    """Of the learner's link, in each direction."""
    latency: float = 0.0
    workers_a_node: int = 8
    jitter: float = 0.1
    """Standard deviation of the time of a call, as a share of it."""
    lifetime: float = float("inf")
    """Mean time until a worker is lost."""
    restart: float = 15.0
    """Until a new one plays."""
    cores: float = float("inf")
    """Of the one machine that all share; inf: every worker has its own."""
    worker_cores: float = 0.0
    """Cores that a worker keeps busy."""


@dataclass(frozen=True)
class Outcome:
    """Of the model, for one number of workers."""

    steps_per_second: float
    busy: dict[str, float]
    """Share of the time that each part is busy: workers, link, receiver, learner."""
    policy_lag: float
    """Learner steps between the weights that chose an action and those that train on it, mean."""
    losses: int

    @property
    def limit(self) -> str:
        """The part that is busiest."""
        return max(self.busy, key=lambda part: self.busy[part])


class Model:
    """The state of the cluster, and its events in order of time."""

    def __init__(self, cluster: Cluster, workers: int, seed: int = 0) -> None:
        self.c, self.count, self.rng = cluster, workers, random.Random(seed)
        self.slots = cluster.envs * cluster.seq_len
        self.trains = cluster.batch * cluster.seq_len / cluster.reuse  # new steps that a learner step needs
        self.limit = workers * self.slots + self.trains
        busy = workers * cluster.worker_cores + 1
        self.slow = max(busy / cluster.cores, 1.0)
        self.now, self.events, self.order = 0.0, list[tuple[float, int, str, tuple[Any, ...]]](), 0
        self.calls = [0] * workers  # under way, as the learner counts them
        self.asked = [0] * workers  # at the worker, not begun
        self.playing = [False] * workers
        self.life = [0] * workers  # how often it was lost: what an earlier life sent is void
        self.alive_at = [0.0] * workers
        self.version = [0] * workers
        self.ready = deque[tuple[int, int, int]]()  # (worker, life, version) of results that have arrived
        self.queue = deque[list[float]]()  # [steps, version], stored and not trained on
        self.stored = self.trained = self.lag = 0.0
        self.learner_steps = self.published = self.sent = self.losses = self.pulls = self.turns = 0
        self.link_in = self.link_out = 0.0  # when the link is free
        self.receiving = self.learning = self.blocked = False
        self.busy = dict.fromkeys(("workers", "link", "receiver", "learner"), 0.0)

    def at(self, when: float, what: str, *args: Any) -> None:
        """Schedule an event."""
        self.order += 1
        heapq.heappush(self.events, (when, self.order, what, args))

    def run(self, seconds: float) -> Outcome:
        """Play so long; the first fifth does not count."""
        for worker in range(self.count if self.c.lifetime < float("inf") else 0):
            if self.rng.random() < self.c.restart / (self.c.lifetime + self.c.restart):  # as many are down as later
                self.alive_at[worker] = self.rng.uniform(0.0, self.c.restart)
            self.at(self.alive_at[worker] + self.rng.expovariate(1 / self.c.lifetime), "lose", worker)
        self.at(0.0, "turn")
        start, counted = seconds / 5, False
        trained = lag = 0.0
        while self.events[0][0] < seconds:
            self.now, _, what, args = heapq.heappop(self.events)
            if not counted and self.now >= start:
                counted, trained, lag = True, self.trained, self.lag
                self.busy = dict.fromkeys(self.busy, 0.0)
            getattr(self, f"_{what}")(*args)
        span = seconds - start
        shares = {part: time / span / (self.count if part == "workers" else 1) for part, time in self.busy.items()}
        trained = self.trained - trained
        return Outcome(trained / span, shares, (self.lag - lag) / max(trained, 1.0), self.losses)

    # The workers.

    def _begin(self, worker: int, life: int) -> None:
        if life != self.life[worker] or self.playing[worker] or not self.asked[worker]:
            return
        if self.now < self.alive_at[worker]:
            self.at(self.alive_at[worker], "begin", worker, life)
            return
        self.asked[worker] -= 1
        self.playing[worker] = True
        time = self.slots / self.c.rate * self.slow * max(self.rng.gauss(1.0, self.c.jitter), 0.1)
        self.busy["workers"] += time
        self.at(self.now + time, "played", worker, life, self.version[worker])

    def _played(self, worker: int, life: int, version: int) -> None:
        if life != self.life[worker]:
            return
        self.playing[worker] = False
        time = self.slots * self.c.step_bytes / self.c.bandwidth
        self.busy["link"] += time
        self.link_in = max(self.link_in, self.now) + time
        mean = (version + self.version[worker]) / 2  # weights may have come meanwhile
        self.at(self.link_in + self.c.latency, "arrive", worker, life, mean)
        self._begin(worker, life)

    def _ask(self, worker: int, life: int) -> None:
        if life == self.life[worker]:
            self.asked[worker] += 1
            self._begin(worker, life)

    def _lose(self, worker: int) -> None:
        self.losses += 1
        self.life[worker] += 1
        self.calls[worker] = self.asked[worker] = 0
        self.playing[worker] = False
        self.alive_at[worker] = self.now + self.c.restart
        self.at(self.alive_at[worker] + self.rng.expovariate(1 / self.c.lifetime), "lose", worker)

    def _weigh(self, worker: int, life: int, version: int) -> None:
        if life == self.life[worker]:
            self.version[worker] = version

    # The learner's two threads.

    def _arrive(self, worker: int, life: int, version: int) -> None:
        self.ready.append((worker, life, version))
        if not self.receiving:
            self._turn()

    def _turn(self) -> None:
        """Receive what is ready, one result after the other; then ask, then send weights."""
        self.receiving = True
        self.turns += 1
        found = [(w, version) for w, life, version in self.ready if life == self.life[w]]
        self.ready.clear()
        self._receive(found, self.count * self.c.look * self.slow)

    def _receive(self, found: list[tuple[int, float]], time: float) -> None:
        if not found:
            self.busy["receiver"] += time
            self.at(self.now + time, "reply")
            return
        time += (self.c.message + self.slots * self.c.receive) * self.slow
        self.busy["receiver"] += time
        self.at(self.now + time, "store", found)

    def _store(self, found: list[tuple[int, float]]) -> None:
        worker, version = found.pop(0)
        self.calls[worker] = max(self.calls[worker] - 1, 0)
        self.queue.append([float(self.slots), version])
        self.stored += self.slots
        self._learn()
        self._receive(found, 0.0)

    def _reply(self) -> None:
        backlog = self.stored - self.trained
        ahead = sum(max(calls - 1, 0) for calls in self.calls) * self.slots
        for worker in sorted(range(self.count), key=self.calls.__getitem__):
            again = self.slots if self.calls[worker] else 0
            if again and (self.calls[worker] >= DEPTH or backlog + ahead + again > self.limit):
                break
            self.calls[worker] += 1
            ahead += again
            self.at(self.now + self.c.latency, "ask", worker, self.life[worker])
        time = self._send()
        self.blocked = backlog > self.limit
        self.busy["receiver"] += time
        if not self.blocked:
            self.at(self.now + time, "rest")

    def _rest(self) -> None:
        self.receiving = False
        if self.ready:
            self._turn()
        else:
            self.at(self.now + POLL, "poll", self.turns)

    def _poll(self, turns: int) -> None:
        if turns == self.turns and not self.receiving:
            self._turn()

    def _send(self) -> float:
        """Send the newest weights, if a pull is due; how long that takes."""
        pulls = int(self.stored / (self.count * self.c.envs * self.c.pull_every))
        if pulls == self.pulls or self.published == self.sent:
            return 0.0
        self.pulls, self.sent = pulls, self.published
        time = 0.0
        for worker in range(self.count):
            time += self.c.send * self.slow
            if worker % self.c.workers_a_node == 0:  # the workers of a node share one copy
                self.link_out = max(self.link_out, self.now + time) + self.c.weights_bytes / self.c.bandwidth
            came = max(self.link_out, self.now + time) + self.c.latency
            self.at(came, "weigh", worker, self.life[worker], self.published)
        return time

    def _learn(self) -> None:
        if not self.learning and self.stored - self.trained >= self.trains:
            self.learning = True
            time = self.c.learner * self.slow
            self.busy["learner"] += time
            self.at(self.now + time, "learned")

    def _learned(self) -> None:
        self.learning = False
        left = self.trains
        while left > 1e-9:
            steps = min(left, self.queue[0][0])
            self.lag += steps * (self.learner_steps - self.queue[0][1])
            self.queue[0][0] -= steps
            left -= steps
            if self.queue[0][0] <= 1e-9:
                self.queue.popleft()
        self.trained += self.trains
        self.learner_steps += 1
        if self.learner_steps % self.c.publish_every == 0:
            self.published = self.learner_steps
        if self.blocked and self.stored - self.trained <= self.limit:
            self.blocked = False
            self.at(self.now, "rest")
        self._learn()


def simulate(cluster: Cluster, workers: int, seconds: float = 60.0, seed: int = 0) -> Outcome:
    """What `workers` workers do in so many seconds."""
    return Model(cluster, workers, seed).run(seconds)
