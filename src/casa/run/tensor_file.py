"""Tensors to and from one safetensors file: written as a stream with a checksum, read by the library.

The library's own writer needs the whole file in host memory and rejects tensors that share storage. A replay ring of
gigabytes on a GPU must be streamed. The format is the header's length (8 bytes), a JSON header, the raw bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from casa.run.flatten import RESERVED

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_CHUNK = 16 * 2**20  # bytes copied from the device to the disk at a time
# Smaller tensors are copied from the mapped file into memory aligned by torch. Larger ones stay mapped (copy-on-write),
# because loading a replay ring copies it anyway.
MAPPED = 64 * 2**20


def encoded_size(tensors: Mapping[str, Tensor]) -> int:
    """The number of bytes that `write_tensors` will write."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write a new file, wait until it is on the disk, and return its size and SHA-256.

    The checksum is computed from the tensors, not by reading the file back.
    """
    digest = hashlib.sha256()
    with open(path, "xb") as file:
        header = _header(tensors)
        digest.update(header)
        file.write(header)
        for name in _order(tensors):
            flat = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
            for begin in range(0, flat.numel(), _CHUNK):
                chunk = flat[begin : begin + _CHUNK].cpu().numpy().data
                digest.update(chunk)
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU; SafetensorError if it is not valid."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return {name: t.clone() if t.nbytes < MAPPED else t for name, t in tensors.items()}


def _order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Widest elements first, so that every tensor starts at a multiple of its element size."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, dict[str, object]] = {}
    begin = 0
    for name in _order(tensors):
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES or tensor.layout is not torch.strided or name == RESERVED:
            raise TypeError(f"cannot save tensor {name!r} of {tensor.dtype}, {tensor.layout}")
        end = begin + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
