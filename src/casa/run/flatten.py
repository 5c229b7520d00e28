"""Convert a nested state (optimizer, random generators, counters) to named tensors plus JSON, and back, exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

RESERVED = "__metadata__"  # the one name that the safetensors format reserves


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """unflatten(*flatten(state)) = state: tensors by name, and a JSON value with the position of each.

    Tensors, arrays, dicts (with keys of any type below), lists, tuples, None, bool, int of any size, str and float
    (including NaN and infinity) are restored exactly; NumPy scalars become Python numbers, other mappings become dicts.
    Values without a JSON form are encoded as an object with one key that starts with `$`. Any other type is a TypeError
    that names its position.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _encode(state, (), tensors)


def unflatten(tensors: Mapping[str, Tensor], encoded: Any) -> Any:
    """The inverse of `flatten`; ValueError if `encoded` is not one of its results."""
    if isinstance(encoded, list):
        return [unflatten(tensors, item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if not any(key.startswith("$") for key in encoded):
        return {key: unflatten(tensors, value) for key, value in encoded.items()}
    match encoded:
        case {"$tensor": str(name), **rest} if not rest and name in tensors:
            return tensors[name]
        case {"$array": str(name), **rest} if not rest and name in tensors:
            return tensors[name].numpy()
        case {"$float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
            return float(text)
        case {"$tuple": list(items), **rest} if not rest:
            return tuple(unflatten(tensors, item) for item in items)
        case {"$dict": list(pairs), **rest} if not rest and all(
            isinstance(pair, list) and len(pair) == 2 for pair in pairs
        ):
            return {unflatten(tensors, key): unflatten(tensors, value) for key, value in pairs}
    raise ValueError(f"unknown form in a saved state: {str(encoded)[:80]}")


def _encode(value: Any, where: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Tensor):
        return {"$tensor": _store(value.detach(), where, tensors)}
    if isinstance(value, np.ndarray):
        return {"$array": _store(_from_array(value, where), where, tensors)}
    if type(value) in (list, tuple):
        items = [_encode(item, (*where, str(i)), tensors) for i, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, Mapping):
        plain = all(type(key) is str and not key.startswith("$") for key in value)
        pairs = [
            (key if plain else _encode(key, where, tensors), _encode(item, (*where, str(key)), tensors))
            for key, item in value.items()
        ]
        return dict(pairs) if plain else {"$dict": [list(pair) for pair in pairs]}
    kind = type(value).__name__
    raise TypeError(
        f"cannot save {'/'.join(where) or 'state'}: {kind} is no tensor, array, dict, list, tuple, number or string"
    )


def _store(tensor: Tensor, where: tuple[str, ...], tensors: dict[str, Tensor]) -> str:
    """Store a tensor under a free name that resembles its position; only `encoded` defines the position."""
    base = "/".join(where).encode("utf-8", "replace").decode() or "tensor"
    name, number = base, 2
    while name in tensors or name == RESERVED:
        name, number = f"{base}#{number}", number + 1
    tensors[name] = tensor
    return name


def _from_array(array: np.ndarray[Any, Any], where: tuple[str, ...]) -> Tensor:
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = array.copy(order="C")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise TypeError(f"cannot save {'/'.join(where) or 'array'}: {error}") from error
