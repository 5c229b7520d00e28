"""The recurrent core: an LSTM whose state is reset wherever an episode starts inside the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMCell(nn.Module):
    """c_t = σ(f) k c_{t-1} + σ(i) tanh(g), h_t = σ(o) tanh(c_t), where i, f, g, o = W x_t + b + k U h_{t-1}.

    k = 0 at an episode start, else 1. The matrix products are computed outside, so that this element-wise part can be
    compiled into one kernel.
    """

    def forward(self, from_input: Tensor, from_hidden: Tensor, c: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """(h_t in the dtype of `from_input`, c_t) from W x_t + b and U h_{t-1} [B, 4H], c_{t-1} [B, H], k [B, 1]."""
        i, f, g, o = (from_input + keep.to(from_hidden.dtype) * from_hidden).float().chunk(4, -1)
        c = torch.sigmoid(f) * (c * keep) + torch.sigmoid(i) * torch.tanh(g)
        return (torch.sigmoid(o) * torch.tanh(c)).to(from_input.dtype), c


class LSTMCore(nn.Module):
    """i, f, g, o = W x_t + U h_{t-1} + b; c_t = σ(f) c_{t-1} + σ(i) tanh(g); h_t = σ(o) tanh(c_t).

    (h, c) are reset to zero before step t where `starts[t]`: the cell masks c and the recurrent term U h, which is the
    same as masking h. The state is one tensor [B, 2H]: h, then c.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = LSTMCell()
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        with torch.no_grad():  # forget-gate bias + 1: remember by default
            self.from_input.bias[hidden : 2 * hidden].add_(1.0)

    def forward(self, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the state [B, 2H] after the last step, from x [T, B, F], starts [T, B] bool."""
        gates_x = self.from_input(x)
        keep = (~starts).to(state.dtype).unsqueeze(-1)  # [T, B, 1]
        # Contiguous, as the cell's outputs are, so that the compiled cell is not recompiled for other strides.
        h, c = (part.contiguous() for part in state.split(self.hidden, -1))
        h = h.to(gates_x.dtype)
        outputs = []
        for from_input, kept in zip(gates_x.unbind(), keep.unbind(), strict=True):
            h, c = self.cell(from_input, self.from_hidden(h), c, kept)
            outputs.append(h)
        return torch.stack(outputs), torch.cat((h.to(c.dtype), c), -1)
