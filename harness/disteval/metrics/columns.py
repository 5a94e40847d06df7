"""Entries of samples as arrays, which travel many times faster than as many Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_KINDS: dict[type, str] = {bool: "?", int: "<i8", float: "<f8"}
_INT64 = np.iinfo(np.int64)


def pack(entries: Sequence[Any]) -> tuple[str, Any]:
    """Turn entries of one type into arrays; other entries stay a list.

    Entries may be bool, int of 64 bits, float, NumPy scalars or arrays of one dtype and shape, or
    tuples of such, all of one length.

    Returns:
        The form, for `unpack`, and the arrays or the list.
    """
    entries = list(entries)
    kinds = {type(entry) for entry in entries}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _KINDS and (kind is not int or _fits(entries)):
        return kind.__name__, np.array(entries, dtype=_KINDS[kind])
    if kind is not None and (issubclass(kind, np.generic) or kind is np.ndarray):
        forms = {(entry.dtype.str, entry.shape) for entry in entries}
        if len(forms) == 1 and entries[0].dtype.kind in "biufc":
            return ("array" if kind is np.ndarray else "scalar"), np.stack(entries)
    if kind is tuple and len({len(entry) for entry in entries}) == 1 and entries[0]:
        return "tuple", [pack(column) for column in zip(*entries, strict=True)]
    return "list", entries


def unpack(form: str, packed: Any) -> list[Any]:
    """Return the entries that `pack` was given, with their types."""
    if form == "list":
        return list(packed)
    if form == "tuple":
        return list(zip(*(unpack(*column) for column in packed), strict=True))
    if form == "array":
        return [row.copy() for row in packed]
    return list(packed) if form == "scalar" else list(packed.tolist())


def _fits(entries: Sequence[int]) -> bool:
    return _INT64.min <= min(entries) and max(entries) <= _INT64.max
