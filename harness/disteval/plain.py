"""Values as bytes, and back without running any code of theirs, as a pickle would.

Numbers, text, bytes, containers, NumPy's arrays and scalars and torch's tensors of the CPU keep
their types and all their bits. Named tuples and data classes are rebuilt from their fields, if
their module is imported already, and without calling them. A value is written as JSON, which is
compressed, and the bytes of its arrays follow.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import struct
import sys
import zlib
from collections import Counter, OrderedDict
from functools import lru_cache
from typing import Any

import cloudpickle
import numpy as np

_PICKLED = b"p"
_HEAD, _FLOAT = struct.Struct("<Q"), struct.Struct("<d")
_CONTAINERS: dict[str, Any] = {"l": list, "t": tuple, "S": set, "z": frozenset}
_MAPPINGS: dict[str, Any] = {"d": dict, "C": Counter, "O": OrderedDict}
_TAGS = {kind: tag for tag, kind in (_CONTAINERS | _MAPPINGS).items()}


def packed(value: Any, mark: bytes = b".") -> bytes:
    """Return a value as bytes that begin with a mark; it is pickled if `dumps` refuses it.

    Args:
        value: Any value that can be pickled.
        mark: One byte, by which the caller tells its values apart.
    """
    try:
        return mark + dumps(value)
    except TypeError:
        return _PICKLED + bytes(cloudpickle.dumps(value))


def unpacked(data: bytes) -> Any:
    """Return the value that `packed` was given; for bytes of a rank of one's own world alone.

    Raises:
        ValueError: See `loads`.
    """
    return pickle.loads(memoryview(data)[1:]) if is_pickled(data) else loads(memoryview(data)[1:])


def is_pickled(data: bytes) -> bool:
    """Return whether `packed` had to pickle a value."""
    return data.startswith(_PICKLED)


def dumps(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        TypeError: It holds a value of another type, which is named.
    """
    rest: list[bytes] = []
    try:
        text = json.dumps(_tree(value, rest), separators=(",", ":"))
    except RecursionError:
        raise TypeError(f"a {type(value).__name__} that holds itself, or is too deep") from None
    tree = zlib.compress(text.encode(), 1)  # small states fit into one frame
    return b"".join([_HEAD.pack(len(tree)), tree, *rest])


def loads(data: bytes | memoryview) -> Any:
    """Return the value that `dumps` was given.

    Raises:
        ValueError: The bytes are something else, or of a class that is not imported here.
    """
    view = memoryview(data)
    try:
        end = _HEAD.size + _HEAD.unpack_from(view)[0]
        rest = [view[end:]]
        value = _value(json.loads(zlib.decompress(view[_HEAD.size : end])), rest)
        if len(rest[0]):
            raise ValueError(f"{len(rest[0])} bytes are left")
    except Exception as error:  # of numbers that make no sense, or types that do not fit
        raise ValueError(f"bytes that are no value ({type(error).__name__}: {error})") from error
    return value


def _tree(value: Any, rest: list[bytes]) -> Any:
    """Return a value as JSON: itself, or a list of its kind and its parts.

    Args:
        value: The value.
        rest: Gets the bytes of the value, of which only their number is in the tree.
    """
    kind: Any = type(value)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else ["i", hex(value)]
    if kind is float:
        return value if math.isfinite(value) else ["f", _FLOAT.pack(value).hex()]
    if value is None or kind is bool or (kind is str and value.isascii()):
        return value
    if kind is str:  # which may hold surrogates, and JSON would join them
        return ["s", _put(value.encode("utf-8", "surrogatepass"), rest)]
    if kind is bytes or kind is bytearray:
        return ["b" if kind is bytes else "B", _put(bytes(value), rest)]
    if kind is complex:
        return ["c", _tree(value.real, rest), _tree(value.imag, rest)]
    if (tag := _TAGS.get(kind)) is not None:
        parts = value if tag in _CONTAINERS else [each for pair in value.items() for each in pair]
        if kind in (set, frozenset):
            parts = sorted(value, key=repr)
        return [tag, *[_tree(each, rest) for each in parts]]
    if kind is np.ndarray and value.dtype == object:
        return ["x", value.shape, *[_tree(each, rest) for each in value.ravel().tolist()]]
    if kind is np.ndarray:
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return ["a", _text_of(value.dtype), order, value.shape, _put(value.tobytes(order), rest)]
    if isinstance(value, np.generic):
        return ["g", _text_of(value.dtype), _put(value.tobytes(), rest)]
    if kind.__name__ == "Tensor" and kind.__module__ == "torch":
        name, data = _tensor(value)
        return ["P", name, tuple(value.shape), _put(data, rest)]
    names = _fields(kind)
    if names is None or _found(kind.__module__, kind.__qualname__) != kind:
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")
    held = getattr(value, "__dict__", {})
    if tuple(held) != (() if isinstance(value, tuple) else names):
        raise TypeError(f"a {kind.__qualname__} with attributes that are not its fields")
    fields = value if isinstance(value, tuple) else held.values()
    return ["n", kind.__module__, kind.__qualname__, *[_tree(each, rest) for each in fields]]


def _value(tree: Any, rest: list[memoryview]) -> Any:
    """Return the value of a tree, see `_tree`; its bytes are taken from the one entry of ``rest``.

    Raises:
        Exception: The tree is not such.
    """
    if not isinstance(tree, list):
        return tree
    tag, *parts = tree
    if tag == "i":
        return int(parts[0], 16)
    if tag == "f":
        return _FLOAT.unpack(bytes.fromhex(parts[0]))[0]
    if tag == "s":
        return str(_take(parts[0], rest), "utf-8", "surrogatepass")
    if tag in ("b", "B"):
        return (bytes if tag == "b" else bytearray)(_take(parts[0], rest))
    if tag == "a":
        dtype, order, shape, size = parts
        return np.ndarray(shape, _dtype_of(dtype), _take(size, rest), order=order).copy("K")
    if tag == "g":
        return np.ndarray((), _dtype_of(parts[0]), _take(parts[1], rest))[()]
    if tag == "P":
        torch = sys.modules["torch"]
        dtype, shape = getattr(torch, parts[0]), parts[1]
        data = bytearray(_take(parts[2], rest))
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(shape)
    plain = parts[1 if tag == "x" else 2 if tag == "n" else 0 :]
    values = [_value(each, rest) for each in plain]
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](values)
    if tag in _MAPPINGS:
        return _MAPPINGS[tag](dict(zip(values[::2], values[1::2], strict=True)))
    if tag == "c":
        return complex(*values)
    if tag == "x":
        found = np.empty(len(values), object)
        for at, each in enumerate(values):  # lists and arrays stay as they are
            found[at] = each
        return found.reshape(parts[0])
    if tag == "n":
        return _record(parts[0], parts[1], values)
    raise ValueError(f"a value of the kind {tag!r:.100}")


def _put(data: bytes, rest: list[bytes]) -> int:
    rest.append(data)
    return len(data)


def _take(size: int, rest: list[memoryview]) -> memoryview:
    found, rest[0] = rest[0][:size], rest[0][size:]
    if len(found) != size:
        raise ValueError("they end too early")
    return found


def _tensor(value: Any) -> tuple[str, bytes]:
    """Return the name of the dtype of a tensor, and its bytes."""
    torch = sys.modules["torch"]
    if (
        value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad
        or value.is_quantized or value.is_conj() or value.is_neg()
    ):  # fmt: skip
        raise TypeError(f"a torch.Tensor on {value.device}, or with more than its numbers")
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(value.dtype).removeprefix("torch."), data


def _record(module: str, name: str, fields: list[Any]) -> Any:
    """Return a named tuple or a data class with these fields, without calling it."""
    kind = _found(module, name)
    names = None if kind is None else _fields(kind)
    if kind is None or names is None or len(fields) != len(names):
        raise ValueError(f"a {module}.{name}, which is not imported here, or has other fields")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, fields)
    found = object.__new__(kind)
    vars(found).update(zip(names, fields, strict=True))
    return found


@lru_cache(256)
def _text_of(dtype: np.dtype[Any]) -> str:
    for text in (dtype.str, dtype.name):  # the name is that of a type such as bfloat16
        try:
            if not dtype.hasobject and np.dtype(text) == dtype:
                return str(text)
        except TypeError:
            continue
    raise TypeError(f"an array of {dtype}")


def _dtype_of(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.hasobject:  # whose bytes would be addresses
        raise ValueError(f"an array of {dtype}")
    return dtype


def _found(module: str, name: str) -> type | None:
    """Return a class of a module that is imported, without asking the module for it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = None if found is None else vars(found).get(part)
    return found if isinstance(found, type) else None


@lru_cache(256)
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a class that is nothing but them; None for other classes."""
    if hasattr(kind, "__del__"):
        return None
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    own = [vars(base) for base in kind.__mro__[:-1]]  # all but object
    if own and all("__dataclass_fields__" in each and "__slots__" not in each for each in own):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None
