"""Digests of the elements of a stream, by which ranks show that they read the same stream.

Equal elements have equal digests on every rank: the identity of objects, the interning of strings,
the order of a set and the order of a dict's keys don't count. The types, the numbers' bits, the
order in lists, and the shape and dtype of arrays do.
"""

from __future__ import annotations

import copyreg
import marshal
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.metrics.arrays import kind_of

_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})
_STRING = frozenset({str})
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)
_DEEPEST = 100
_CHUNK = 16
_STEPS = 1024
_LONG = 4096
_VERSION = 2
"""The version of marshal's format in which equal values have equal bytes: the later ones write
whether a string is interned and whether an object occurred before."""


class RunningDigest:
    """The digest of all elements so far, and earlier digests, to find where two streams differ.

    It holds up to 1024 earlier digests in equal distances, which grow with the stream, so its
    memory does not.

    Attributes:
        count: The number of elements.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._pending: list[Any] = []
        self._digested = 0
        self._steps: list[bytes] = []
        self._distance = 1
        self._most = 1

    @property
    def count(self) -> int:  # noqa: D102
        return self._digested + len(self._pending)

    def add(self, element: Any) -> None:
        """Add the next element of the stream; it may change afterwards."""
        self._pending.append(plain(element))
        if len(self._pending) == self._most:
            self._settle()

    def value(self) -> bytes:
        """Return the digest of all elements."""
        if not self._pending:  # as after one of the `steps`, whose digest this must be
            return self._hash.digest()
        whole = self._hash.copy()
        whole.update(marshal.dumps(self._pending, _VERSION))
        return whole.digest()

    def steps(self) -> dict[int, bytes]:
        """Return earlier digests, each by the number of elements that it is of."""
        numbers = range(self._distance, self._digested + 1, self._distance)
        return dict(zip(numbers, self._steps, strict=True))

    def _settle(self) -> None:
        # Several at a time, because a call of marshal and of the hash costs more than an element.
        self._hash.update(marshal.dumps(self._pending, _VERSION))
        self._digested += len(self._pending)
        self._pending.clear()
        if self._digested % self._distance == 0:
            self._steps.append(self._hash.digest())
            if len(self._steps) == _STEPS:
                self._steps = self._steps[1::2]
                self._distance *= 2
                self._most = min(self._distance, _CHUNK)


def digest_of(value: Any) -> bytes:
    """Return the digest of one value."""
    return blake2b(marshal.dumps(plain(value), _VERSION), digest_size=16).digest()


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return an immutable value that marshal writes to equal bytes for equal values.

    An object that is neither a container nor an array is taken apart as pickle does it. If it can't
    be pickled, its type alone counts.

    Args:
        value: Any value.
        above: The identities of the containers that the value is in, since one may contain itself.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    # Most elements are flat, and every rank takes every element apart.
    if kind is dict and _ATOMS.issuperset(map(type, value.values())):
        names = tuple(value)
        if _STRING.issuperset(map(type, names)):  # a subclass's would be taken for theirs
            order = _sorted_names(names)
            parts = value.values() if order == names else map(value.__getitem__, order)
            return "dict", order, tuple(parts)
    elif (kind is tuple or kind is list) and _ATOMS.issuperset(map(type, value)):
        return kind.__name__, tuple(value)
    if id(value) in above:
        return "cycle", len(above) - above.index(id(value))
    if len(above) == _DEEPEST:
        return "deep", _name(kind)
    inside = (*above, id(value))
    if kind is tuple or kind is list:
        return kind.__name__, tuple([plain(part, inside) for part in value])
    if kind is dict:
        return _plain_dict(value, inside)
    if kind is set or kind is frozenset:
        return kind.__name__, tuple(sorted(_bytes_of(part, inside) for part in value))
    if kind is np.ndarray or isinstance(value, np.generic | np.memmap):
        return _plain_array(np.asarray(value), inside)
    if kind_of(value) != "numpy":
        with suppress(Exception):  # as of ragged and nested tensors
            return _plain_tensor(value, inside)
    return _plain_object(value, inside)


def _plain_dict(value: dict[Any, Any], inside: tuple[int, ...]) -> Any:
    names = tuple(value)
    if not _STRING.issuperset(map(type, names)):
        pairs = (_bytes_of((key, part), inside) for key, part in value.items())
        return "items", tuple(sorted(pairs))
    order = _sorted_names(names)
    return "dict", order, tuple([plain(value[name], inside) for name in order])


@lru_cache(maxsize=64)
def _sorted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return a dict's keys in order, for most streams repeat the same keys."""
    return tuple(sorted(names))


def _bytes_of(value: Any, inside: tuple[int, ...]) -> bytes:
    return marshal.dumps(plain(value, inside), _VERSION)


def _plain_array(array: npt.NDArray[Any], inside: tuple[int, ...]) -> Any:
    if not array.dtype.isnative:  # pickling changes it
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = array.dtype
    content: Any
    if dtype.hasobject or dtype.names:  # whose bytes hold addresses and gaps
        content = plain(array.tolist(), inside)
    elif array.nbytes <= _LONG:
        content = array.tobytes()
    else:
        one = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        content = blake2b(one.data, digest_size=16).digest()
    return "array", str(dtype) if dtype.names else dtype.str, array.shape, content


def _plain_tensor(value: Any, inside: tuple[int, ...]) -> Any:
    if kind_of(value) != "torch":
        array = np.asarray(value)
        if array.dtype.hasobject and array.ndim != len(value.shape):
            raise TypeError("NumPy holds a ragged or sparse tensor as one object")
        return "tensor", str(value.dtype), _plain_array(array, inside)
    try:
        array = value.numpy(force=True)
    except TypeError:  # a sparse one, or one of a dtype that NumPy lacks, such as bfloat16
        import torch

        dense = value.detach().to_dense().cpu().contiguous()
        array = dense.reshape(-1).view(torch.uint8).numpy()
    return "tensor", str(value.dtype), tuple(value.shape), _plain_array(array, inside)


def _plain_object(value: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(value, _NAMED):
        return "name", _name(value)
    if isinstance(value, bytearray | memoryview):
        return "bytes", bytes(value)
    if isinstance(value, MappingProxyType):
        return "proxy", plain(dict(value), inside)
    kind = type(value)
    try:
        reduce = copyreg.dispatch_table.get(kind)
        parts = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(parts, str):
            return "name", parts
        function, arguments, state, entries, items = (*parts, None, None, None)[:5]
        lists = None if entries is None else list(entries)
        pairs = None if items is None else dict(items)
    except Exception:  # the class decides what may fail
        return "type", _name(kind)
    return "object", *(plain(part, inside) for part in (function, arguments, state, lists, pairs))


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return f"{getattr(value, '__module__', '')}.{name}"
