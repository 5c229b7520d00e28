"""The pair of targets that most estimators return, and the shape check at the start of all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """(V^ [T, B], Q^ of the taken action [T, B]), detached."""

    v: Tensor
    q: Tensor


def prepare(**tensors: Tensor) -> list[Tensor]:
    """Assert one common [T, B] shape and return the tensors detached, floating ones in fp32 or better."""
    shape = next(iter(tensors.values())).shape
    if len(shape) < 1 or shape[0] < 1:
        raise ValueError(f"targets take time-major tensors [T, B] with T >= 1, got shape {tuple(shape)}")
    for name, tensor in tensors.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    return [wide(tensor.detach()) for tensor in tensors.values()]


def wide(tensor: Tensor) -> Tensor:
    """x in fp32 or better, so that nothing is summed in half precision; bool and fp64 are unchanged."""
    if tensor.dtype in (torch.bool, torch.float64):
        return tensor
    return tensor.float()
