"""Inner products of per-state gradients of one layer, without storing the gradients of large layers.

A layer's gradient for one sample is G = Σ_l δ_l a_lᵀ over the L places where its weight is applied: rows of a linear
layer, pixels of a convolution's output, time steps. There are two exact ways to ⟨G, H⟩; the cheaper one is used:

    few places:   ⟨G, H⟩ = Σ_{l,m} (δ_l · ε_m)(a_l · a_m)      never forms G; (δ · ε)|a|² for a single place
    many places:  G = Δᵀ A for a few samples at a time          for convolutions, which have few weights
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from casa.targets.types import wide

# Bytes of patches and gradients per chunk; on a CPU, per thread. More does not fit the cache, less means more calls.
_CACHE_CHUNK = 16 << 20
_LARGE_CHUNK = 64 << 20  # where large matrix products matter more than the cache


class Products:
    """Σ over layers of ⟨∇f(s), ∇g(s)⟩ per sample, [S, 2, 2], and of weighted batch sums, [F, F].

    The per-sample products are those of the first two of F objectives. The batch products, the Gram matrix of
    Σ_s w_f(s) ∇f(s), are computed only with `weights` [F, S].
    """

    def __init__(self, samples: int, weights: Tensor | None, device: torch.device) -> None:
        size = 0 if weights is None else len(weights)
        self.per_sample = torch.zeros(samples, 2, 2, dtype=torch.float64, device=device)
        self.batch = torch.zeros(size, size, dtype=torch.float64, device=device)
        self._weights = weights

    def add(self, module: nn.Linear | nn.Conv2d, inputs: list[Tensor], deltas: list[list[Tensor]]) -> None:
        """Add one layer: its calls' inputs [S, k, ...], and for each objective its calls' δ, [S, k, O, ...]."""
        if module.weight.requires_grad:
            groups = module.groups if isinstance(module, nn.Conv2d) else 1
            for group in range(groups):
                self._add_weight(module, inputs, deltas, group, groups)
        if module.bias is not None and module.bias.requires_grad:
            sums = [[wide(delta).transpose(1, 2).flatten(2).sum(-1) for delta in calls] for calls in deltas]
            self._add_gradients(torch.stack([torch.stack(calls).sum(0) for calls in sums], 1))

    def _add_gradients(self, gradients: Tensor) -> None:
        """Add P parameters with known gradients [S, F, P]."""
        self.per_sample += gradients[:, :2] @ gradients[:, :2].mT
        if self._weights is not None:
            total = torch.einsum("fs,sfp->fp", self._weights.to(gradients.dtype), gradients)
            self.batch += total @ total.mT

    def _add_weight(
        self,
        module: nn.Linear | nn.Conv2d,
        inputs: list[Tensor],
        deltas: list[list[Tensor]],
        group: int,
        groups: int,
    ) -> None:
        samples, objectives = len(inputs[0]), len(deltas)
        out, fan_in = module.weight.shape[0] // groups, module.weight[0].numel()
        places = sum(delta[0, :, 0].numel() for delta in deltas[0])
        width = objectives * out
        few = places * (width + fan_in) < width * fan_in
        dtype = wide(deltas[0][0][:0]).dtype
        floats = places * (fan_in + width) + (4 * places**2 if few else width * fan_in)
        in_cache = not few and inputs[0].device.type == "cpu"
        chunk = max(1, (_CACHE_CHUNK if in_cache else _LARGE_CHUNK) // (floats * dtype.itemsize))
        chunk = min(samples, chunk * torch.get_num_threads() if in_cache else chunk)
        # Allocate buffers once: new memory for each chunk would cost as much as the arithmetic.
        patches = inputs[0].new_empty(chunk, places, fan_in, dtype=dtype)
        delta = patches.new_empty(chunk, places, objectives, out)
        gradients = patches.new_empty(0 if few else chunk, width, fan_in)
        total = patches.new_zeros(width, fan_in)  # Σ_s w_f(s) ∇f(s)
        weights = None if self._weights is None else self._weights.to(dtype)
        scale: float = getattr(module, "input_scale", 1.0)

        for start in range(0, samples, chunk):
            here = slice(start, min(start + chunk, samples))
            n = here.stop - start
            a, d = patches[:n], delta[:n]
            _fill_patches(a, module, [x[here] for x in inputs], group)
            _fill_deltas(d, [[call[here] for call in calls] for calls in deltas], group)
            if few:
                pair = d[:, :, :2].transpose(1, 2)  # [n, 2, L, O]
                dots = pair.unsqueeze(2) @ pair.unsqueeze(1).mT  # [n, 2, 2, L, L]
                self.per_sample[here] += scale**2 * (dots * (a @ a.mT)[:, None, None]).sum((-2, -1))
                if weights is not None:
                    weighted = (d * weights[:, here].mT[:, None, :, None]).view(n * places, width)
                    total.addmm_(weighted.mT, a.flatten(0, 1))
            else:
                g = torch.bmm(d.flatten(2).mT, a, out=gradients[:n]).view(n, objectives, -1)
                self.per_sample[here] += scale**2 * (g[:, :2] @ g[:, :2].mT)
                if weights is not None:
                    total.view(objectives, 1, -1).baddbmm_(weights[:, None, here], g.transpose(0, 1))
        if weights is not None:
            total = total.view(objectives, -1)
            self.batch += scale**2 * (total @ total.mT)


def _fill_patches(to: Tensor, module: nn.Linear | nn.Conv2d, inputs: list[Tensor], group: int) -> None:
    """Write the rows a_l that the weight multiplies at each place, [n, L, P]."""
    start = 0
    for x in inputs:  # [n, k, ...]
        if isinstance(module, nn.Linear):
            to[:, start : start + x.shape[1]] = x
            start += x.shape[1]
            continue
        windows = _windows(module, x.flatten(0, 1)).unflatten(0, x.shape[:2])  # [n, k, h, w, kh, kw, C]
        here, kernel = windows.shape[1:4], windows.shape[4:6]
        channels = module.weight.shape[1]
        rows = to[:, start : start + here.numel()].unflatten(1, here).unflatten(-1, (*kernel, channels))
        rows.copy_(windows[..., group * channels : (group + 1) * channels])
        start += here.numel()


def _fill_deltas(to: Tensor, deltas: list[list[Tensor]], group: int) -> None:
    """Write the output gradients at each place, [n, L, F, O]."""
    out = to.shape[-1]
    for objective, calls in enumerate(deltas):
        start = 0
        for call in calls:  # [n, k, O, ...]
            rows = call[:, :, group * out : (group + 1) * out].movedim(2, -1).flatten(1, -2)
            to[:, start : start + rows.shape[1], objective] = rows
            start += rows.shape[1]


def _windows(conv: nn.Conv2d, images: Tensor) -> Tensor:
    """Every patch that the kernel sees, [m, h, w, kh, kw, C]: a view of the padded images, channels last."""
    padding = conv._reversed_padding_repeated_twice
    if any(padding):
        images = F.pad(images, padding, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode)
    x = images.permute(0, 2, 3, 1).contiguous()
    (step_y, step_x), (gap_y, gap_x), (kh, kw) = conv.stride, conv.dilation, conv.kernel_size
    h = (x.shape[1] - gap_y * (kh - 1) - 1) // step_y + 1
    w = (x.shape[2] - gap_x * (kw - 1) - 1) // step_x + 1
    image, row, column, channel = x.stride()
    strides = (image, step_y * row, step_x * column, gap_y * row, gap_x * column, channel)
    return x.as_strided((len(x), h, w, kh, kw, x.shape[3]), strides, x.storage_offset())
