"""Conversion between torch tensors and NumPy arrays, for torchmetrics.

torch is not imported here: a caller that has a torch metric has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import kind_of, shape_of, to_numpy

_MOST = np.iinfo(np.int64).max


def pack(value: Any) -> tuple[Any, ...]:
    """Turn a state into NumPy arrays, which travel faster than tensors and have no device."""
    if isinstance(value, list):
        return "list", [pack(entry) for entry in value]
    if kind_of(value) != "torch":
        return "object", value
    dtype = str(value.dtype).removeprefix("torch.")
    tensor = value.detach().cpu().contiguous()
    if dtype == "bfloat16":  # NumPy lacks it
        tensor = tensor.view(sys.modules["torch"].int16)
    return "tensor", dtype, tensor.numpy()


def unpack(packed: tuple[Any, ...], device: Any) -> Any:
    """Rebuild the state that `pack` was given, with new tensors on a device."""
    if packed[0] == "list":
        return [unpack(entry, device) for entry in packed[1]]
    if packed[0] == "object":
        return packed[1]
    torch = sys.modules["torch"]
    _, dtype, array = packed
    return torch.tensor(array).view(getattr(torch, dtype)).to(device)


def length(value: Any) -> int:
    """Count samples: an array's first axis, or a list's entries; any other value is one sample."""
    if isinstance(value, Mapping):
        return next((length(part) for part in value.values()), 0)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value)
    shape = () if value is None else shape_of(value)
    return shape[0] if shape else 1


def to_tensors(value: Any, device: Any) -> Any:
    """Turn arrays and lists of numbers into tensors, at any depth; other values stay."""
    torch = sys.modules["torch"]
    if isinstance(value, Mapping):
        return {key: to_tensors(part, device) for key, part in value.items()}
    if kind_of(value) == "torch":
        # A copy: the metric may keep the tensor, and the caller may reuse its memory.
        return value.detach().to(device, copy=True)
    if isinstance(value, list | tuple) and not _holds_numbers(value):
        parts = [to_tensors(part, device) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, list | tuple | np.ndarray | np.generic) or kind_of(value) != "numpy":
        array = to_numpy(value)
        # torch supports few operations on the wider unsigned integers.
        wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
        if wide and array.size and array.max() > _MOST:
            raise UsageError(
                f"a torchmetrics metric gets int64 for {array.dtype}, which does not hold "
                f"{array.max()}; give numbers up to 2**63-1"
            )
        # A copy in C's order: torch takes no negative strides.
        kind = np.int64 if wide else array.dtype
        return torch.from_numpy(np.array(array, kind, order="C")).to(device)
    return value


def _holds_numbers(value: Any) -> bool:
    while isinstance(value, list | tuple) and len(value):
        value = value[0]
    return isinstance(value, Number | np.generic)
