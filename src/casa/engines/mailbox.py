"""Weight transfer: the learner publishes every few learner steps, the actors pull when they are ready."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from casa.runtime.streams import Fence


def _tensors(network: nn.Module) -> list[Tensor]:
    """Parameters and buffers. Acting needs the buffers, too: running means of a normalisation, for example."""
    return [*network.parameters(), *network.buffers()]


class Mailbox:
    """The latest published weights and their version, the learner step at which they were published."""

    def __init__(self, network: nn.Module) -> None:
        self._source = _tensors(network)
        self._weights = [x.detach().clone() for x in self._source]
        self._lock = threading.Lock()
        self._published, self._pulled = Fence(self._source[0].device), Fence(self._source[0].device)
        self.version = 0

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Copy the learner's weights into the mailbox."""
        with self._lock:
            self._pulled.wait()
            torch._foreach_copy_(self._weights, self._source)
            self._published.mark()
            self.version = version

    def ready(self) -> bool:
        """Whether the latest weights can be pulled without waiting for the learner's stream."""
        return self._published.passed()

    @torch.no_grad()
    def pull(self, network: nn.Module) -> int:
        """Copy the published weights into an actor's network, cast to its dtype; return their version."""
        with self._lock:
            self._published.wait()
            torch._foreach_copy_(_tensors(network), self._weights)
            self._pulled.mark()
            return self.version

    def state_dict(self) -> dict[str, Tensor]:
        """The published weights, in the network's order."""
        return {str(i): weight for i, weight in enumerate(self._weights)}

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, Tensor], version: int) -> None:
        """Restore the result of `state_dict`."""
        for i, weight in enumerate(self._weights):
            if str(i) in weights:  # earlier versions published no buffers
                weight.copy_(weights[str(i)])
        self.version = version
