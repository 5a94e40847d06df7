"""Values as bytes, and back without running any code of theirs, as a pickle would.

Numbers, text, bytes, containers, NumPy's arrays and scalars and torch's tensors of the CPU keep
their types and all their bits. Named tuples and data classes are rebuilt from their fields, if
their module is imported already, and without calling them.
"""

from __future__ import annotations

import dataclasses
import pickle
import struct
import sys
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cloudpickle
import numpy as np

_PICKLED = b"p"
_NUMBER, _FLOAT = struct.Struct("<q"), struct.Struct("<d")
_LONG = 255
_MANY = 32  # numbers of one type from which a list is written as an array
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_CONTAINERS: dict[bytes, type] = {b"l": list, b"t": tuple, b"S": set, b"z": frozenset}
_MAPPINGS: dict[bytes, type] = {b"d": dict, b"C": Counter, b"O": OrderedDict}
_TYPECODES = {float: "d", int: "q"}


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
    out = bytearray()
    try:
        _write(value, out)
    except RecursionError:
        raise TypeError(f"a {type(value).__name__} that holds itself, or is too deep") from None
    return bytes(out)


def loads(data: bytes | memoryview) -> Any:
    """Return the value that `dumps` was given.

    Raises:
        ValueError: The bytes are something else, or of a class that is not imported here.
    """
    reader = _Reader(memoryview(data))
    try:
        value = reader.value()
        if reader.at != len(data):
            raise ValueError(f"{len(data) - reader.at} bytes are left")
    except Exception as error:  # of numbers that make no sense, or types that do not fit
        raise ValueError(f"bytes that are no value ({type(error).__name__}: {error})") from error
    return value


def _write(value: Any, out: bytearray) -> None:
    kind: Any = type(value)
    writer = _WRITERS.get(kind)
    if writer is not None:
        writer(value, out)
    elif isinstance(value, np.generic):
        _write_all(out, b"g", _text_of(value.dtype), value.tobytes())
    elif kind.__name__ == "Tensor" and kind.__module__ == "torch":
        _write_tensor(value, out)
    else:
        names = _fields(kind)
        if names is None or _found(kind.__module__, kind.__qualname__) != kind:
            raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")
        held = getattr(value, "__dict__", {})
        fields = tuple(value) if isinstance(value, tuple) else tuple(held.values())
        if tuple(held) != (() if isinstance(value, tuple) else names):
            raise TypeError(f"a {kind.__qualname__} with attributes that are not its fields")
        _write_all(out, b"n", kind.__module__, kind.__qualname__, fields)


def _write_all(out: bytearray, tag: bytes, *values: Any) -> None:
    out += tag
    for value in values:
        _write(value, out)


def _write_int(value: int, out: bytearray) -> None:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    out += b"i" + _sized(len(data)) + data


def _sized(size: int) -> bytes:
    """Return a size in one byte, or in nine if it is large: small states fit into one frame."""
    return bytes([size]) if size < _LONG else bytes([_LONG]) + _NUMBER.pack(size)


def _write_bytes(tag: bytes) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        data = value.encode("utf-8", "surrogatepass") if tag == b"s" else value
        out += tag + _sized(len(data))
        out += data

    return write


def _write_container(tag: bytes) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        if tag == b"l" and len(value) >= _MANY:
            kinds = set(map(type, value))
            code = _TYPECODES.get(kinds.pop()) if len(kinds) == 1 else None
            try:
                numbers = None if code is None else np.array(array(code, value))
            except OverflowError:  # beyond 64 bits
                numbers = None
            if numbers is not None:
                _write_all(out, b"L", numbers)
                return
        out += tag + _sized(len(value))
        for each in value:
            _write(each, out)

    return write


def _write_mapping(tag: bytes) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        out += tag + _sized(len(value))
        for key, each in value.items():
            _write(key, out)
            _write(each, out)

    return write


def _write_array(value: Any, out: bytearray) -> None:
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    if value.dtype == object:
        _write_all(out, b"x", value.shape, value.ravel().tolist())
    else:
        _write_all(out, b"a", _text_of(value.dtype), order, value.shape, value.tobytes(order))


def _write_tensor(value: Any, out: bytearray) -> None:
    torch = sys.modules["torch"]
    if (
        value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad
        or value.is_quantized or value.is_conj() or value.is_neg()
    ):  # fmt: skip
        raise TypeError(f"a torch.Tensor on {value.device}, or with more than its numbers")
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    name = str(value.dtype).removeprefix("torch.")
    _write_all(out, b"P", name, tuple(value.shape), data)


class _Reader:
    """Reads values from bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.at = data, 0

    def value(self) -> Any:
        tag = bytes(self._take(1))
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _CONTAINERS:
            return _CONTAINERS[tag]([self.value() for _ in range(self._size())])
        if tag in _MAPPINGS:
            return _MAPPINGS[tag]({self.value(): self.value() for _ in range(self._size())})
        return _READERS[tag](self)

    def integer(self) -> int:
        return int.from_bytes(self._take(self._size()), "little", signed=True)

    def float(self) -> float:
        found: float = _FLOAT.unpack(self._take(8))[0]
        return found

    def bytes(self) -> bytes:
        return bytes(self._take(self._size()))

    def array(self) -> Any:
        dtype, order = _dtype_of(self.value()), self.value()
        shape, data = self.value(), self.value()
        return np.ndarray(shape, dtype, data, order=order).copy("K")

    def objects(self) -> Any:
        shape, values = self.value(), self.value()
        found = np.empty(len(values), object)
        for at, each in enumerate(values):  # lists and arrays stay as they are
            found[at] = each
        return found.reshape(shape)

    def scalar(self) -> Any:
        return np.ndarray((), _dtype_of(self.value()), self.value())[()]

    def tensor(self) -> Any:
        torch = sys.modules["torch"]
        dtype = getattr(torch, self.value())
        shape, data = self.value(), bytearray(self.value())
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(shape)

    def record(self) -> Any:
        module, name, fields = self.value(), self.value(), self.value()
        kind = _found(module, name)
        names = None if kind is None else _fields(kind)
        if kind is None or names is None or len(fields) != len(names):
            raise ValueError(f"a {module}.{name}, which is not imported here, or has other fields")
        if issubclass(kind, tuple):
            return tuple.__new__(kind, fields)
        found = object.__new__(kind)
        vars(found).update(zip(names, fields, strict=True))
        return found

    def _size(self) -> int:
        size = self._take(1)[0]
        if size == _LONG:
            (size,) = _NUMBER.unpack(self._take(8))
        if not 0 <= size <= len(self._data) - self.at:  # each entry has a byte or more
            raise ValueError(f"{size} entries in {len(self._data) - self.at} bytes")
        return size

    def _take(self, size: int) -> memoryview:
        found = self._data[self.at : self.at + size]
        if len(found) != size:
            raise ValueError("they end too early")
        self.at += size
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


_WRITERS: dict[type, Callable[[Any, bytearray], None]] = {
    int: _write_int,
    float: lambda value, out: out.extend(b"f" + _FLOAT.pack(value)),
    complex: lambda value, out: _write_all(out, b"c", value.real, value.imag),
    str: _write_bytes(b"s"),
    bytes: _write_bytes(b"b"),
    bytearray: _write_bytes(b"B"),
    np.ndarray: _write_array,
}
for _tag, _value in _CONSTANTS.items():
    _WRITERS[type(_value)] = lambda value, out: out.extend(
        b"N" if value is None else b"T" if value else b"F"
    )
for _tag, _kind in _CONTAINERS.items():
    _WRITERS[_kind] = _write_container(_tag)
for _tag, _kind in _MAPPINGS.items():
    _WRITERS[_kind] = _write_mapping(_tag)

_READERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"i": _Reader.integer,
    b"f": _Reader.float,
    b"c": lambda reader: complex(reader.value(), reader.value()),
    b"s": lambda reader: reader.bytes().decode("utf-8", "surrogatepass"),
    b"b": _Reader.bytes,
    b"B": lambda reader: bytearray(reader.bytes()),
    b"L": lambda reader: reader.value().tolist(),
    b"a": _Reader.array,
    b"x": _Reader.objects,
    b"g": _Reader.scalar,
    b"P": _Reader.tensor,
    b"n": _Reader.record,
}
