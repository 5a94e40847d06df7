"""Digests that tell whether two objects are the same to the last bit, also across processes.

``==`` is not enough: it takes 1 for True and 0.0 for -0.0, finds no NaN equal, and does not look at
an array's dtype, memory order or byte order, nor at which parts of an object are one and the same.
"""

from __future__ import annotations

import datetime
import hashlib
import reprlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

# Whether two equal objects of these types are the same object makes no difference to users.
_IMMUTABLE = (tuple, frozenset, range, np.generic, datetime.date, datetime.timedelta)

BASES = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float)
"""What classes of a user's own may be derived from, with a value beside their attributes."""


class _Short(reprlib.Repr):
    """Texts that show the order of keys, and the class of what is derived from a plain one."""

    def repr1(self, obj: Any, level: int) -> str:
        text = super().repr1(obj, level)
        name = type(obj).__name__
        is_told = type(obj) in (*BASES, bool) or not isinstance(obj, BASES) or name in text
        return text if is_told else f"{name}({text})"

    def repr_dict(self, obj: dict[Any, Any], level: int) -> str:
        if not obj or level <= 0:
            return "{...}" if obj else "{}"
        first = list(obj.items())[: self.maxdict]
        told = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in first]
        return f"{{{', '.join(told + ['...'] * (len(obj) > len(first)))}}}"


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = 80


class Gathered(list[Any]):
    """The entries of an all-gather: which of them are one and the same object is not compared."""


def digest(obj: Any) -> str:
    """Return a digest; equal ones mean objects that are the same to the last bit."""
    if type(obj) is Gathered:
        return " ".join(map(digest, obj))
    parts: list[bytes] = []
    _collect(parts.append, obj, {})
    into = hashlib.sha256()
    for part in parts:
        into.update(part)
    return into.hexdigest()[:24]


def describe(obj: Any) -> str:
    """Return a short text that shows the differences between similar objects."""
    if type(obj) is Gathered:
        return f"[{', '.join(map(describe, obj))}]"
    if isinstance(obj, np.ndarray):
        order = "F" if _is_fortran(obj) else "C"
        kind = "array" if type(obj) is np.ndarray else type(obj).__name__
        return (
            f"{kind}({obj.dtype.str}, shape {obj.shape}, order {order}, "
            f"{_SHORT.repr(obj.tolist())})"
        )
    if isinstance(obj, (bytes, bytearray)) and len(obj) > 40:
        return f"{type(obj).__name__} of length {len(obj)}"
    return _SHORT.repr(obj)


def _is_fortran(array: Any) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def _collect(put: Callable[[bytes], None], obj: Any, known: dict[int, tuple[int, Any]]) -> None:
    """Put the parts of an object's type, value and inner sharing, each with its length."""
    kind = type(obj)
    if kind is str:
        _put(put, "str", obj.encode("utf-8", "surrogatepass"))
    elif kind is int or kind is bool or obj is None:
        put(f"{kind.__name__}:{obj}:".encode())
    elif kind is float:
        put(b"float:" + struct.pack("<d", obj))
    elif kind is bytes:
        _put(put, "bytes", obj)
    elif kind is tuple:
        put(f"tuple:{len(obj)}:".encode())
        for item in obj:
            _collect(put, item, known)
    elif kind is complex:
        put(b"complex:" + struct.pack("<dd", obj.real, obj.imag))
    elif id(obj) in known:
        put(f"again:{known[id(obj)][0]}:".encode())
    else:
        if not isinstance(obj, _IMMUTABLE):
            # The object is kept too, because no other object can have its id while it exists.
            known[id(obj)] = len(known), obj
        _collect_compound(put, obj, known)


def _put(put: Callable[[bytes], None], tag: str, data: bytes) -> None:
    put(f"{tag}:{len(data)}:".encode())
    put(data)


def _collect_compound(put: Callable[[bytes], None], obj: Any, known: dict[int, Any]) -> None:
    kind = type(obj)
    if kind is list:
        put(f"list:{len(obj)}:".encode())
        for item in obj:
            _collect(put, item, known)
    elif kind is dict:
        put(f"dict:{len(obj)}:".encode())
        for key, value in obj.items():
            _collect(put, key, known)
            _collect(put, value, known)
    elif kind is bytearray:
        _put(put, "bytearray", bytes(obj))
    elif kind in (set, frozenset):
        _put(put, kind.__name__, "".join(sorted(digest(item) for item in obj)).encode())
    elif isinstance(obj, np.ndarray):
        layout = f"{obj.dtype.str} {obj.dtype.descr} {obj.shape} {_is_fortran(obj)}"
        _put(put, kind.__qualname__, layout.encode())
        if (mask := getattr(obj, "mask", None)) is not None:
            _collect(put, np.asarray(mask), known)
        if obj.dtype.hasobject:
            _collect(put, obj.tolist(), known)
        else:
            _put(put, "data", np.asarray(obj).tobytes())
    elif isinstance(obj, np.generic):
        _put(put, f"numpy {obj.dtype.str}", obj.tobytes())
    elif isinstance(obj, BaseException):
        _put(put, "exception", f"{kind.__module__}.{kind.__qualname__}".encode())
        _collect(put, (obj.args, vars(obj)), known)
    elif (base := next((each for each in BASES if isinstance(obj, each)), None)) is not None:
        _put(put, base.__name__, f"{kind.__module__}.{kind.__qualname__}".encode())
        _collect(put, base(obj), known)
        _collect(put, (getattr(obj, "__dict__", {}), getattr(obj, "default_factory", None)), known)
    elif hasattr(obj, "__dict__") and not isinstance(obj, type):
        _put(put, "object", f"{kind.__module__}.{kind.__qualname__}".encode())
        _collect(put, vars(obj), known)
    else:
        _put(put, f"{kind.__module__}.{kind.__qualname__}", repr(obj).encode())
