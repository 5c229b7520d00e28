"""Inner products of per-state gradients of one layer, without storing the gradients of large layers.

A layer's gradient for one sample is G = Σ_l δ_l a_lᵀ over the L places where its weight is applied: rows of a linear
layer, pixels of a convolution's output, time steps. There are two exact ways to ⟨G, H⟩; the cheaper one is used:

    few places:   ⟨G, H⟩ = Σ_{l,m} (δ_l · ε_m)(a_l · a_m)      never forms G; (δ · ε)|a|² for a single place
    many places:  G = Δᵀ A for a few samples at a time          for convolutions, which have few weights

For a sum over samples the places of all samples count together.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from casa.targets.types import wide

# Bytes of patches and gradients per chunk; on a CPU, per thread. More does not fit the cache, less means more calls.
_CACHE_CHUNK = 16 << 20
_LARGE_CHUNK = 64 << 20  # where large matrix products matter more than the cache


_FEW_SAMPLES = 4  # up to so many, a convolution's own backward pass is faster than patches


class Products:
    """Σ over layers of ⟨∇f(s), ∇g(s)⟩ per sample, [S, P, P], and of weighted batch sums, [F, F].

    The per-sample products are those of the first P (two) of F objectives. The batch products, the Gram matrix of
    Σ_s w_f(s) ∇f(s), are computed only with `weights` [F, S].
    """

    def __init__(self, samples: int, weights: Tensor | None, device: torch.device, first: int = 2) -> None:
        size = 0 if weights is None else len(weights)
        self.first = first
        self.per_sample = torch.zeros(samples, first, first, dtype=torch.float64, device=device)
        self.batch = torch.zeros(size, size, dtype=torch.float64, device=device)
        self._weights = weights

    def add(self, module: nn.Linear | nn.Conv2d, inputs: list[Tensor], deltas: list[list[Tensor]]) -> None:
        """Add one layer: its calls' inputs [S, k, ...], and for each objective its calls' δ, [S, k, O, ...]."""
        samples = len(inputs[0])
        conv = module if isinstance(module, nn.Conv2d) and module.groups == 1 else None
        if module.weight.requires_grad and conv is not None and samples <= _FEW_SAMPLES:
            self._add_gradients(torch.stack([_weight_gradients(conv, inputs, deltas, s) for s in range(samples)]))
        elif module.weight.requires_grad:
            groups = module.groups if isinstance(module, nn.Conv2d) else 1
            for group in range(groups):
                self._add_weight(module, inputs, deltas, group, groups)
        if module.bias is not None and module.bias.requires_grad:
            places = [1, *range(3, deltas[0][0].dim())]
            sums = [reduce(torch.add, (wide(delta).sum(places) for delta in calls)) for calls in deltas]
            self._add_gradients(torch.stack(sums, 1))

    def _add_gradients(self, gradients: Tensor) -> None:
        """Add P parameters with known gradients [S, F, P]."""
        some = gradients[:, : self.first]
        self.per_sample += some @ some.mT
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
        floats = places * (fan_in + width) + (self.first**2 * places**2 if few else width * fan_in)
        in_cache = not few and inputs[0].device.type == "cpu"
        chunk = max(1, (_CACHE_CHUNK if in_cache else _LARGE_CHUNK) // (floats * dtype.itemsize))
        chunk = min(samples, chunk * torch.get_num_threads() if in_cache else chunk)
        # Allocate buffers once: new memory for each chunk would cost as much as the arithmetic.
        patches = inputs[0].new_empty(chunk, places, fan_in, dtype=dtype)
        delta = patches.new_empty(chunk, places, objectives, out)
        gradients = patches.new_empty(0 if few else chunk, width, fan_in)
        rows = samples * places
        pairwise = few and chunk == samples and rows * (objectives * width + fan_in) < width * fan_in
        total = patches.new_zeros(0 if pairwise else width, fan_in)  # Σ_s w_f(s) ∇f(s)
        weights = None if self._weights is None else self._weights.to(dtype)
        scale: float = getattr(module, "input_scale", 1.0)

        for start in range(0, samples, chunk):
            here = slice(start, min(start + chunk, samples))
            n = here.stop - start
            a, d = patches[:n], delta[:n]
            _fill_patches(a, module, [x[here] for x in inputs], group)
            _fill_deltas(d, [[call[here] for call in calls] for calls in deltas], group)
            if few:
                some = d[:, :, : self.first].transpose(1, 2)  # [n, P, L, O]
                dots = some.unsqueeze(2) @ some.unsqueeze(1).mT  # [n, P, P, L, L]
                self.per_sample[here] += scale**2 * (dots * (a @ a.mT)[:, None, None]).sum((-2, -1))
                if weights is not None:
                    weighted = d * weights[:, here].mT[:, None, :, None]
                    if pairwise:
                        flat, inputs_of = weighted.flatten(0, 1).transpose(0, 1), a.flatten(0, 1)  # [F, R, O], [R, P]
                        dots = flat.unsqueeze(1) @ flat.unsqueeze(0).mT  # [F, F, R, R]
                        self.batch += scale**2 * (dots * (inputs_of @ inputs_of.mT)).sum((-2, -1))
                    else:
                        total.addmm_(weighted.view(n * places, width).mT, a.flatten(0, 1))
            else:
                g = torch.bmm(d.flatten(2).mT, a, out=gradients[:n]).view(n, objectives, -1)
                some = g[:, : self.first]
                self.per_sample[here] += scale**2 * (some @ some.mT)
                if weights is not None:
                    total.view(objectives, 1, -1).baddbmm_(weights[:, None, here], g.transpose(0, 1))
        if weights is not None and not pairwise:
            total = total.view(objectives, -1)
            self.batch += scale**2 * (total @ total.mT)


def _weight_gradients(conv: nn.Conv2d, inputs: list[Tensor], deltas: list[list[Tensor]], sample: int) -> Tensor:
    """∂/∂W of each objective for one sample, [F, P], by one backward pass of a convolution with F times the outputs."""
    out, *kernel = conv.weight.shape
    size = [len(deltas) * out, *kernel]
    total = conv.weight.new_zeros(())
    for x, *calls in zip(inputs, *deltas, strict=True):
        images, padding = wide(x[sample]), conv.padding
        if conv.padding_mode != "zeros" or isinstance(padding, str):
            images, padding = _padded(conv, images), (0, 0)
        delta = torch.cat([wide(call[sample]) for call in calls], 1)
        total = total + conv2d_weight(images, size, delta, conv.stride, padding, conv.dilation)
    return getattr(conv, "input_scale", 1.0) * total.reshape(len(deltas), -1)


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
    x = _padded(conv, images).permute(0, 2, 3, 1).contiguous()
    (step_y, step_x), (gap_y, gap_x), (kh, kw) = conv.stride, conv.dilation, conv.kernel_size
    h = (x.shape[1] - gap_y * (kh - 1) - 1) // step_y + 1
    w = (x.shape[2] - gap_x * (kw - 1) - 1) // step_x + 1
    image, row, column, channel = x.stride()
    strides = (image, step_y * row, step_x * column, gap_y * row, gap_x * column, channel)
    return x.as_strided((len(x), h, w, kh, kw, x.shape[3]), strides, x.storage_offset())


def _padded(conv: nn.Conv2d, images: Tensor) -> Tensor:
    padding = conv._reversed_padding_repeated_twice
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return F.pad(images, padding, mode=mode) if any(padding) else images
