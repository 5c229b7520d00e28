"""A learner step shared by several processes: each unrolls a part of the batch, their gradients are added.

loss = f(outputs of the whole batch). The outputs are small, so every process gathers them all, computes the same loss,
and differentiates its own part: Σ_parts ∂loss/∂outputs · ∂outputs/∂θ is the gradient of one process with the whole
batch, for any loss, also one that is normalised over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from casa.heads import HeadOutput
from casa.learn import shares
from casa.learn.learner import Gradient, Learner
from casa.learn.objective import TrainedSteps
from casa.learn.shares import Grads
from casa.rollout.ring import Batch

dist: Any = torch.distributed  # its classes have no types
PATIENCE = timedelta(seconds=120)
"""Longest time that one process waits for the others."""


class Group:
    """Processes 0 .. `size` - 1 and their collective operations on CPU tensors (gloo)."""

    def __init__(
        self, host: str, port: int, rank: int, size: int, meet: Callable[[int], None] = lambda port: None
    ) -> None:
        """Process 0 listens at `host`, on any free port if `port` is 0, and calls `meet` with it before it waits."""
        self.rank, self.size = rank, size
        store = dist.TCPStore(host, port, size, rank == 0, wait_for_workers=False, timeout=PATIENCE)
        meet(store.port)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, PATIENCE)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors of every process by those of process 0."""
        for work in [self._gloo.broadcast(x, 0) for x in tensors]:
            work.wait()

    def gather(self, out: HeadOutput) -> HeadOutput:
        """The outputs of all parts, joined along B; without gradients."""
        parts = []
        for x in out.tensors():
            mine = x.detach().contiguous()
            found = [torch.empty_like(mine) for _ in range(self.size)]
            self._gloo.allgather(found, mine).wait()
            parts.append(found)
        return shares.join([out.with_tensors(list(each)) for each in zip(*parts, strict=True)])

    def add(self, grads: Grads) -> Grads:
        """The sum over all processes, of gradients that none or all of them have."""
        used = [x for x in grads if x is not None]
        flat = torch.cat([x.flatten() for x in used])
        self._gloo.allreduce(flat).wait()
        summed = iter(flat.split([x.numel() for x in used]))
        return [None if x is None else next(summed).view_as(x) for x in grads]


def tensors_to_share(learner: Learner, target: bool) -> Sequence[Tensor]:
    """What process 0 broadcasts before a step: weights and buffers, and those of the target network if asked for."""
    networks = [learner.network, *([learner.target] if target and learner.target is not None else [])]
    return [x.detach() for network in networks for x in (*network.parameters(), *network.buffers())]


def shared_gradient(learner: Learner, group: Group, part: Batch, whole: TrainedSteps) -> Gradient:
    """∇ loss on the whole batch, from this process's part of it; all processes call it at once.

    The parts are equally large, in the order of the ranks; `whole` holds the transitions of them all.
    """
    out, target = learner.outputs(part)
    gathered = group.gather(out), None if target is None else group.gather(target)
    result, pieces = learner.slopes(*gathered, whole, [part.rewards.shape[1]] * group.size)
    grads = group.add(learner.pull_back(out, pieces[group.rank]))
    return Gradient(result.loss.detach(), grads, result.td_errors, result.scalars)
