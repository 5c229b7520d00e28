"""Several learners: the learner's process samples, steps and saves; helpers on the cluster share its gradients.

A helper keeps nothing between two steps that it could not get again, so a lost one is replaced within the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from casa.config import plugins
from casa.config.fields import RunConfig
from casa.engines.build import build_network
from casa.engines.cluster.session import explained, import_ray, is_lost
from casa.engines.cluster.version import code_version, require_same_code
from casa.envs.types import EnvSpec
from casa.learn import shares
from casa.learn.group import Group, shared_gradient, tensors_to_share
from casa.learn.learner import Gradient, Learner
from casa.learn.objective import TrainedSteps
from casa.nn import Network
from casa.rollout.ring import Batch

HOPELESS = 5
"""A learner step that fails so many times ends the run."""


class LearnerHelper:
    """The part of a learner that a helper process has: the network, and the losses."""

    def build(self, config: RunConfig, spec: EnvSpec, code: str) -> None:
        """Build it; UserError if this node has other code than the learner."""
        require_same_code(code)
        plugins.load(config.plugins, trust=True)
        torch.set_num_threads(1)
        self.learner = Learner(build_network(config, spec), config)

    def join(self, host: str, port: int, rank: int, size: int) -> None:
        """Join the group whose process 0 listens there."""
        self.group = Group(host, port, rank, size)

    def step(self, part: list[Any], whole: list[Any], target: bool, number: int) -> None:
        """Take part in the learner step `number`."""
        self.learner.steps = number
        self.learner.renew_noise()
        self.group.broadcast(tensors_to_share(self.learner, target))
        shared_gradient(self.learner, self.group, Batch(*map(_tensor, part)), TrainedSteps(*map(_tensor, whole)))


class SharedLearner(Learner):
    """A learner whose gradients are computed together with `helpers` processes of the cluster."""

    def __init__(
        self, network: Network, config: RunConfig, spec: EnvSpec, note: Callable[[str], None], fall_back: bool
    ) -> None:
        super().__init__(network, config, fall_back=fall_back)
        self.spec, self.note = spec, note
        self.restarts = 0
        self._helpers: list[Any] = []
        self._group: Group | None = None
        self._target_at = -1  # learner step at which the helpers got the target network

    def differentiate(self, batch: Batch, weights: Tensor) -> Gradient:
        """∇ loss on a batch; if helpers are lost, with new ones."""
        for _ in range(HOPELESS):
            calls: list[Any] = []
            try:
                return self._differentiate(batch, weights, calls)
            except Exception as error:
                lost = self._lost(calls, error)
                self.disband()
                if not lost:
                    raise explained(error, "the learners") from None
                self.restarts += 1
                self.note(f"a learner was lost: {len(self._ranks)} are started again ({self.restarts} times so far)")
        raise RuntimeError(f"a learner step failed {HOPELESS} times, each time because a learner was lost")

    @property
    def _ranks(self) -> range:
        """Ranks of the helpers."""
        return range(1, self.config.cluster.learners)

    def _differentiate(self, batch: Batch, weights: Tensor, calls: list[Any]) -> Gradient:
        group = self._group or self._assemble()
        parts = shares.split(batch, group.size)
        whole = self.trained_steps(batch, weights)
        target = self._target_at != self._target_updates
        for rank, helper in zip(self._ranks, self._helpers, strict=True):
            mine, all_of_it = ([_array(x) for x in tensors] for tensors in (parts[rank], whole))
            calls.append(helper.step.remote(mine, all_of_it, target, self.steps))
        group.broadcast(tensors_to_share(self, target))
        self._target_at = self._target_updates
        return shared_gradient(self, group, parts[0], whole)

    @property
    def _target_updates(self) -> int:
        """Updates of the target network so far."""
        return self.steps // self.config.learner.target_period

    def _assemble(self) -> Group:
        ray, size = import_ray(), self.config.cluster.learners
        host = ray.util.get_node_ip_address()
        kind = ray.remote(num_cpus=1)(LearnerHelper)
        self._helpers = [kind.remote() for _ in self._ranks]
        ray.get([helper.build.remote(self.config, self.spec, code_version()) for helper in self._helpers])
        joining: list[Any] = []

        def invite(port: int) -> None:
            pairs = zip(self._ranks, self._helpers, strict=True)
            joining.extend(helper.join.remote(host, port, rank, size) for rank, helper in pairs)

        self._group, self._target_at = Group(host, 0, 0, size, invite), -1
        ray.get(joining)
        return self._group

    def _lost(self, calls: list[Any], error: BaseException) -> bool:
        """Whether the error is that a helper is gone, which Ray may notice a little later than gloo."""
        ray = import_ray()
        if is_lost(error):
            return True
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=10) if calls else ([], [])
        for call in done:
            try:
                ray.get(call)
            except Exception as found:
                if is_lost(found):
                    return True
        return False

    def disband(self) -> None:
        """End the helpers."""
        ray = import_ray()
        for helper in self._helpers:
            if ray.is_initialized():
                ray.kill(helper)
        self._helpers, self._group = [], None


def _array(x: Tensor | None) -> Any:
    """As an array, which travels without the rest of the memory that it is a part of."""
    return None if x is None else x.detach().numpy()


def _tensor(x: Any) -> Any:
    return None if x is None else torch.tensor(x)
