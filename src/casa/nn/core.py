"""The recurrent core: an LSTM that starts afresh wherever an episode starts inside the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMCore(nn.Module):
    """i, f, g, o = W x_t + U h_{t-1} + b; c_t = σ(f) c_{t-1} + σ(i) tanh(g); h_t = σ(o) tanh(c_t).

    (h, c) are set to zero before step t where `starts[t]`. The state is one tensor [B, 2H]: h, then c.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        with torch.no_grad():  # remember by default: the forget gate starts open
            self.from_input.bias[hidden : 2 * hidden].add_(1.0)

    def forward(self, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the state [B, 2H] after the last step, from x [T, B, F], starts [T, B] bool."""
        gates_x = self.from_input(x)
        keep = (~starts).to(state.dtype).unsqueeze(-1)  # [T, B, 1]
        h, c = state.split(self.hidden, -1)
        outputs = []
        for t in range(x.shape[0]):
            h, c = h * keep[t], c * keep[t]
            i, f, g, o = (gates_x[t] + self.from_hidden(h.to(gates_x.dtype))).float().chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs), torch.cat((h, c), -1)
