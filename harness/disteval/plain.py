"""Numbers, text, arrays and containers of them as bytes, without pickle.

What comes back is equal and of the same types. Reading runs no code of the sender's and allocates
no more than the bytes that are there. One thing is lost that pickle keeps: two references to one
list come back as two lists.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

MAX_DEPTH = 64
"""How deep containers may be nested; a list that holds itself is deeper."""

OUT_OF_BAND_BYTES = 4096
"""Arrays and bytes from this size on travel beside the body, uncopied."""

_COUNT = struct.Struct("<Q")
_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_DTYPE = re.compile(r"[<>|][biufcSUmM]\d{0,9}(\[\d{0,9}[A-Za-z]{1,2}\])?")
_INT_RANGE = range(-(1 << 63), 1 << 63)


class PlainError(ValueError):
    """Something is not plain, or bytes are not what `dumps` wrote."""


def is_plain_array(obj: Any) -> bool:
    """Whether this is an array that its dtype, shape and memory describe fully."""
    return (
        type(obj) is np.ndarray
        and _is_plain_dtype(obj.dtype)
        and (obj.flags.c_contiguous or obj.flags.f_contiguous)
    )


def dumps(obj: Any) -> tuple[bytes, list[memoryview]]:
    """Write an object.

    Returns:
        The body, and the memory of its large arrays and bytes: flat, of bytes, and not copied.

    Raises:
        PlainError: It is, or holds, something other than None, bool, int, float, complex, str,
            bytes, list, tuple, dict, and NumPy arrays and scalars of numbers, dates or text; or it
            is nested more than `MAX_DEPTH` deep.
    """
    body: list[bytes] = []
    buffers: list[memoryview] = []
    _write(obj, body.append, buffers, 0)
    return b"".join(body), buffers


def loads(body: memoryview, buffers: Sequence[memoryview]) -> Any:
    """Read what `dumps` wrote; arrays are views of ``buffers``.

    Raises:
        PlainError: The bytes were not written by `dumps`.
    """
    reader = _Reader(body, buffers)
    try:
        obj = reader.read(0)
    except PlainError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise PlainError(f"{type(error).__name__}: {error}") from error
    if reader.body:
        raise PlainError(f"{len(reader.body)} bytes follow the object")
    return obj


def _is_plain_dtype(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufcSUmM" and dtype.metadata is None and dtype.itemsize > 0


def _write(obj: Any, put: Callable[[bytes], None], buffers: list[memoryview], depth: int) -> None:
    kind = type(obj)
    if depth > MAX_DEPTH:
        raise PlainError(f"it is nested more than {MAX_DEPTH} deep")
    if obj is None or kind is bool:
        put({None: b"N", True: b"T", False: b"F"}[obj])
    elif kind is int:
        _write_int(obj, put)
    elif kind is float:
        put(b"f" + _FLOAT.pack(obj))
    elif kind is complex:
        put(b"c" + _COMPLEX.pack(obj.real, obj.imag))
    elif kind is str:
        text = obj.encode("utf-8", "surrogatepass")
        put(b"s" + _COUNT.pack(len(text)) + text)
    elif kind is bytes:
        put(b"b")
        _write_memory(memoryview(obj), put, buffers)
    elif kind is list or kind is tuple:
        put((b"l" if kind is list else b"t") + _COUNT.pack(len(obj)))
        for item in obj:
            _write(item, put, buffers, depth + 1)
    elif kind is dict:
        put(b"d" + _COUNT.pack(len(obj)))
        for key, value in obj.items():
            _write(key, put, buffers, depth + 1)
            _write(value, put, buffers, depth + 1)
    elif kind is np.ndarray and _is_plain_dtype(obj.dtype):
        _write_array(obj, put, buffers)
    elif isinstance(obj, np.generic) and _is_plain_dtype(obj.dtype):
        put(b"x")
        _write_array(np.asarray(obj), put, buffers)
    else:
        raise PlainError(f"a {kind.__module__}.{kind.__qualname__} needs pickle")


def _write_int(number: int, put: Callable[[bytes], None]) -> None:
    if number in _INT_RANGE:
        put(b"i" + _INT.pack(number))
    else:
        digits = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        put(b"I" + _COUNT.pack(len(digits)) + digits)


def _write_array(
    array: np.ndarray[Any, Any], put: Callable[[bytes], None], buffers: list[memoryview]
) -> None:
    order = b"F" if array.flags.f_contiguous and not array.flags.c_contiguous else b"C"
    dtype = array.dtype.str.encode()
    shape = b"".join(_COUNT.pack(length) for length in array.shape)
    put(b"a" + bytes([len(dtype)]) + dtype + order + bytes([array.ndim]) + shape)
    # Dates have no buffer of their own, so it is the memory as bytes; a view unless not contiguous.
    flat = array.ravel(order="K") if order == b"F" else np.ascontiguousarray(array).reshape(-1)
    _write_memory(flat.view(np.uint8).data if flat.nbytes else memoryview(b""), put, buffers)


def _write_memory(
    memory: memoryview, put: Callable[[bytes], None], buffers: list[memoryview]
) -> None:
    outside = len(memory) >= OUT_OF_BAND_BYTES
    put((b"o" if outside else b"h") + _COUNT.pack(len(memory)))
    if outside:
        buffers.append(memory)
    else:
        put(bytes(memory))


class _Reader:
    """Takes a body apart from its front."""

    def __init__(self, body: memoryview, buffers: Sequence[memoryview]) -> None:
        self.body = body
        self._buffers = iter(buffers)

    def read(self, depth: int) -> Any:
        tag = bytes(self._take(1))
        if depth > MAX_DEPTH:
            raise PlainError(f"it is nested more than {MAX_DEPTH} deep")
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in b"lt":
            items = [self.read(depth + 1) for _ in range(self._count())]
            return items if tag == b"l" else tuple(items)
        if tag == b"d":
            # A dict display would take a key that comes twice.
            pairs = [(self.read(depth + 1), self.read(depth + 1)) for _ in range(self._count())]
            return dict(pairs)
        return self._scalar(tag)

    def _scalar(self, tag: bytes) -> Any:
        if tag == b"i":
            return _INT.unpack(self._take(8))[0]
        if tag == b"I":
            return int.from_bytes(self._take(self._count()), "little", signed=True)
        if tag == b"f":
            return _FLOAT.unpack(self._take(8))[0]
        if tag == b"c":
            return complex(*_COMPLEX.unpack(self._take(16)))
        if tag == b"s":
            return str(self._take(self._count()), "utf-8", "surrogatepass")
        if tag == b"b":
            return bytes(self._memory())
        if tag == b"a":
            return self._array()
        if tag == b"x" and bytes(self._take(1)) == b"a":
            array = self._array()
            if array.ndim:
                raise PlainError(f"a scalar has {array.ndim} dimensions")
            return array[()]
        raise PlainError(f"no kind of object is called {tag!r}")

    def _array(self) -> np.ndarray[Any, Any]:
        name = bytes(self._take(self._take(1)[0])).decode("ascii")
        if not _DTYPE.fullmatch(name):
            raise PlainError(f"no dtype is called {name!r}")
        dtype = np.dtype(name)
        order = bytes(self._take(1))
        shape = tuple(_COUNT.unpack(self._take(8))[0] for _ in range(self._take(1)[0]))
        memory = self._memory()
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size != len(memory):
            raise PlainError(f"shape {shape} of {dtype} takes {size} bytes, not {len(memory)}")
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, order=_ORDERS[order])
        return array

    def _memory(self) -> memoryview:
        where = bytes(self._take(1))
        size = self._count()
        if where == b"h":
            return memoryview(bytearray(self._take(size)))
        memory = next(self._buffers, None)
        if where != b"o" or memory is None or len(memory) != size:
            raise PlainError("its arrays and the memory that came do not fit")
        return memoryview(bytearray(memory)) if memory.readonly else memory

    def _count(self) -> int:
        return int(_COUNT.unpack(self._take(8))[0])

    def _take(self, size: int) -> memoryview:
        if size > len(self.body):
            raise PlainError(f"it ends {size - len(self.body)} bytes early")
        taken, self.body = self.body[:size], self.body[size:]
        return taken


_ORDERS: dict[bytes, Literal["C", "F"]] = {b"C": "C", b"F": "F"}
_CONSTANTS: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False}
