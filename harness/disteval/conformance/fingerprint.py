"""Digests that tell whether two objects are the same to the last bit, also across processes.

``==`` is not enough: it takes 1 for True and 0.0 for -0.0, finds no NaN equal, and does not look at
an array's dtype, memory order or byte order, nor at which parts of an object are one and the same.
"""

from __future__ import annotations

import datetime
import hashlib
import reprlib
import struct
from typing import Any

import numpy as np

# Whether two equal objects of these types are the same object makes no difference to users.
_IMMUTABLE = (tuple, frozenset, range, np.generic, datetime.date, datetime.timedelta)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class Gathered(list[Any]):
    """The entries of an all-gather: which of them are one and the same object is not compared."""


def digest(obj: Any) -> str:
    """Return a digest; equal ones mean objects that are the same to the last bit."""
    if type(obj) is Gathered:
        return " ".join(map(digest, obj))
    into = hashlib.sha256()
    _feed(into, obj, {})
    return into.hexdigest()[:24]


def describe(obj: Any) -> str:
    """Return a short text that shows the differences between similar objects."""
    if type(obj) is Gathered:
        return f"[{', '.join(map(describe, obj))}]"
    if isinstance(obj, np.ndarray):
        order = "F" if _is_fortran(obj) else "C"
        return (
            f"array({obj.dtype.str}, shape {obj.shape}, order {order}, {_SHORT.repr(obj.tolist())})"
        )
    if isinstance(obj, (bytes, bytearray)) and len(obj) > 40:
        return f"{type(obj).__name__} of length {len(obj)}"
    return _SHORT.repr(obj)


def _is_fortran(array: Any) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def _feed(into: Any, obj: Any, known: dict[int, tuple[int, Any]]) -> None:
    """Feed an object's type, value and inner sharing to a digest."""

    def put(tag: str, data: bytes | memoryview = b"") -> None:
        into.update(f"{tag}:{len(data)}:".encode())
        into.update(data)

    kind = type(obj)
    if obj is None or kind in (bool, int, str):
        put(kind.__name__, repr(obj).encode("utf-8", "surrogatepass"))
    elif kind is float:
        put("float", struct.pack("<d", obj))
    elif kind is complex:
        put("complex", struct.pack("<dd", obj.real, obj.imag))
    elif kind is bytes:
        put("bytes", obj)
    elif id(obj) in known:
        put("again", str(known[id(obj)][0]).encode())
    else:
        if not isinstance(obj, _IMMUTABLE):
            # The object is kept too, because no other object can have its id while it exists.
            known[id(obj)] = len(known), obj
        _feed_compound(into, obj, known, put)


def _feed_compound(into: Any, obj: Any, known: dict[int, tuple[int, Any]], put: Any) -> None:
    kind = type(obj)
    if kind is bytearray:
        put("bytearray", bytes(obj))
    elif kind in (list, tuple):
        put(kind.__name__, str(len(obj)).encode())
        for item in obj:
            _feed(into, item, known)
    elif kind is dict:
        put("dict", str(len(obj)).encode())
        for key, value in obj.items():
            _feed(into, key, known)
            _feed(into, value, known)
    elif kind in (set, frozenset):
        put(kind.__name__, "".join(sorted(digest(item) for item in obj)).encode())
    elif isinstance(obj, np.ndarray):
        put("array", f"{obj.dtype.str} {obj.dtype.descr} {obj.shape} {_is_fortran(obj)}".encode())
        if obj.dtype.hasobject:
            _feed(into, obj.tolist(), known)
        else:
            put("data", obj.tobytes())
    elif isinstance(obj, np.generic):
        put(f"numpy {obj.dtype.str}", obj.tobytes())
    elif isinstance(obj, BaseException):
        put("exception", f"{kind.__module__}.{kind.__qualname__}".encode())
        _feed(into, obj.args, known)
    elif hasattr(obj, "__dict__") and not isinstance(obj, type):
        put("object", f"{kind.__module__}.{kind.__qualname__}".encode())
        _feed(into, vars(obj), known)
    else:
        put(f"{kind.__module__}.{kind.__qualname__}", repr(obj).encode())
