"""Weights from the learner to the actors: published every so many learner steps, pulled when an actor likes."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from casa.runtime.streams import Fence


class Mailbox:
    """The newest published weights and their version (the learner step they come from)."""

    def __init__(self, network: nn.Module) -> None:
        self._source: list[Tensor] = list(network.parameters())
        self._weights = [p.detach().clone() for p in self._source]
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
        """Whether the newest weights can be pulled without waiting for the learner's stream."""
        return self._published.passed()

    @torch.no_grad()
    def pull(self, network: nn.Module) -> int:
        """Copy the published weights into an actor's network, in its dtype; their version."""
        with self._lock:
            self._published.wait()
            torch._foreach_copy_(list(network.parameters()), self._weights)
            self._pulled.mark()
            return self.version

    def state_dict(self) -> dict[str, Tensor]:
        """The published weights, in the network's order."""
        return {str(i): weight for i, weight in enumerate(self._weights)}

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, Tensor], version: int) -> None:
        """Restore what `state_dict` gave."""
        for i, weight in enumerate(self._weights):
            weight.copy_(weights[str(i)])
        self.version = version
