"""Digests of values, by which ranks show that they hold the same.

Equal values have equal digests on every rank: the identity of objects, the interning of strings,
the order of a set and the order of a dict's keys don't count. The types, the numbers' bits, the
order in lists, and the shape and dtype of arrays do. A path that leads to a file stands for what
the file holds, because hosts may mount one folder under different names.
"""

from __future__ import annotations

import copyreg
import marshal
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.coverage import GAMMA, mix
from disteval.identity import without_gaps
from disteval.metrics.arrays import kind_of

_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})
_PLAIN = _ATOMS - {str}  # a text may be the path of a file
_SHORT = 512
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)
_DEEPEST = 100
FILE = "the contents of a file of so many bytes"
"""The first part of what `plain` returns for the path of a file."""
_LONG = 4096
_WORDS = 4096
_BLOCK = 1 << 15
_VERSION = 2
"""The version of marshal's format in which equal values have equal bytes: the later ones write
whether a string is interned and whether an object occurred before."""


class IncomparableError(TypeError):
    """A value holds an object that can't be taken apart, so nobody knows whether two are equal.

    Args:
        kind: The object's type, or a function that has no name by which it can be found.

    Attributes:
        place: Which of several values it is, as far as that is known.
    """

    def __init__(self, kind: type | FunctionType) -> None:
        what = "an object of the type" if isinstance(kind, type) else "the function"
        super().__init__(f"{what} {_name(kind)}, which can't be pickled")
        self.place: int | None = None


def digest_of(value: Any) -> bytes:
    """Return the digest of one value.

    Raises:
        IncomparableError: A part of the value can't be taken apart.
    """
    return blake2b(snapshot(value) or bytes_of(value), digest_size=16).digest()


def snapshot(sample: Any) -> bytes:
    """Return at most 512 bytes that are equal for equal samples; nothing if it can't be compared.

    `bytes_of` says why it can't.
    """
    try:
        # As most samples are, each of which is taken apart:
        if type(sample) is dict and (known := _tagged(tuple(sample))) is not None:
            values, tag = known
            parts = values(sample)
            for part in parts:
                if type(part) not in _PLAIN:
                    parts = tuple([plain(each, (id(sample),)) for each in parts])
                    break
            found = tag + marshal.dumps(parts, _VERSION)
        else:
            found = marshal.dumps(plain(sample), _VERSION)
    except IncomparableError:
        return b""
    return found if len(found) <= _SHORT else blake2b(found, digest_size=16).digest()


@lru_cache(maxsize=256)
def _tagged(names: tuple[Any, ...]) -> tuple[Callable[[Any], tuple[Any, ...]], bytes] | None:
    """Return what takes a dict's values in the order of its keys, and 8 bytes about these.

    They are kept, for most samples have the same keys. None stands for keys that are no texts.
    """
    if not all(isinstance(name, str) for name in names):
        return None
    order = tuple(sorted(names, key=str.__str__))
    # As exact texts, to which those of a subclass are equal here:
    texts = tuple(map(str.__str__, order))
    tag = blake2b(marshal.dumps(texts, _VERSION), digest_size=8).digest()
    if len(order) > 1:
        return itemgetter(*order), tag
    return lambda values: tuple(map(values.__getitem__, order)), tag


def hash_snapshots(found: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """Return 64 bits about each of some byte strings of at most 512 bytes: uint64, shape (N,)."""
    if not found:
        return np.zeros(0, np.uint64)
    lengths = np.fromiter(map(len, found), np.uint64, len(found))
    words = -(-int(lengths.max()) // 8)
    padded = np.array(found, dtype=f"S{8 * words}").view(np.uint64).reshape(len(found), words)
    return mix(_hash_words(padded) + lengths)


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return an immutable value that marshal writes to equal bytes for equal values.

    An object that is neither a container nor an array is taken apart as pickle does it.

    Args:
        value: Any value.
        above: The identities of the containers that the value is in, since one may contain itself.

    Raises:
        IncomparableError: A part of the value can't be taken apart.
    """
    kind = type(value)
    if kind is str:
        return _file(value) if value[:1] == "/" else value
    if kind in _ATOMS:
        return value
    if id(value) in above:
        return "cycle", len(above) - above.index(id(value))
    if len(above) == _DEEPEST:
        return "deep", _name(kind)
    inside = (*above, id(value))
    if kind is tuple or kind is list:
        return kind.__name__, tuple([plain(part, inside) for part in value])
    if kind is dict:
        if (known := _tagged(tuple(value))) is None:
            pairs = (bytes_of((key, part), inside) for key, part in value.items())
            return "items", tuple(sorted(pairs))
        values, tag = known
        return "dict", tag, tuple([plain(part, inside) for part in values(value)])
    if kind is set or kind is frozenset:
        return kind.__name__, tuple(sorted(bytes_of(part, inside) for part in value))
    if kind is np.ndarray or isinstance(value, np.generic | np.memmap):
        return _plain_array(np.asarray(value), inside)
    if kind_of(value) != "numpy":
        with suppress(Exception):  # as of ragged and nested tensors
            array = _plain_array(array_of(value), inside)
            return "tensor", str(value.dtype), tuple(value.shape), array
    return _plain_object(value, inside)


def bytes_of(value: Any, inside: tuple[int, ...] = ()) -> bytes:
    """Return bytes that are equal for equal values, see `plain`."""
    return marshal.dumps(plain(value, inside), _VERSION)


def _plain_array(array: npt.NDArray[Any], inside: tuple[int, ...]) -> Any:
    if not array.dtype.isnative:  # pickling changes it
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = array.dtype
    content: Any
    if dtype.hasobject or dtype.names:  # whose bytes hold addresses and gaps
        content = plain(array.tolist(), inside)
    elif array.nbytes <= _LONG:
        content = without_gaps(array).tobytes()
    else:
        content = int(hash_rows(array[None])[0])
    return "array", str(dtype) if dtype.names else dtype.str, array.shape, content


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return an array of any framework as one of NumPy, whose bytes are the same.

    Raises:
        Exception: Its framework or NumPy can't, as with ragged and nested tensors.
    """
    if kind_of(value) != "torch":
        array = np.asarray(value)
        if array.dtype.hasobject and array.ndim != len(value.shape):
            raise TypeError("NumPy holds a ragged or sparse tensor as one object")
        return array
    try:
        found: npt.NDArray[Any] = value.numpy(force=True)
    except TypeError:  # a sparse one, or one of a dtype that NumPy lacks, such as bfloat16
        import torch

        dense = value.detach().to_dense().cpu().contiguous()
        found = (dense if dense.ndim else dense[None]).view(torch.uint8).numpy()
    return found


def hash_rows(array: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return 64 bits about the bytes of each row of an array: uint64 of shape (N,).

    The hash of Carter and Wegman: the halves of 64-bit words, each multiplied by a random number of
    its own, are added up modulo 2**64. Two rows have the same one with a probability below 2**-32.
    The dtype and the shape don't count.

    Args:
        array: Rows of a dtype without objects and without fields, of shape (N, ...).
    """
    array, count = without_gaps(array), len(array)
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    words = -(-width // 8)
    if not width:
        return np.zeros(count, np.uint64)
    parts = []
    step = max(1, _BLOCK // words)  # rows at a time, so few that they stay in the cache
    for start in range(0, count, step):
        some = np.ascontiguousarray(array[start : start + step])
        rows = some.reshape(len(some), -1).view(np.uint8)
        pieces = -(-words // _WORDS)
        padded = pieces * min(words, _WORDS) * 8
        if padded > width:
            wide = np.zeros((len(rows), padded), np.uint8)
            wide[:, :width] = rows
            rows = wide
        found = _hash_words(rows.view(np.uint64).reshape(len(rows) * pieces, -1))
        if pieces > 1:
            found = hash_rows(found.reshape(len(rows), pieces))
        parts.append(found)
    return mix(np.concatenate(parts or [np.zeros(0, np.uint64)]) + np.uint64(width))


def _hash_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    low, high = _keys()
    low, high = low[: words.shape[1]], high[: words.shape[1]]
    found: npt.NDArray[np.uint64] = np.einsum("ij,j->i", words & np.uint64(0xFFFFFFFF), low)
    found += np.einsum("ij,j->i", words >> np.uint64(32), high)
    return found


@lru_cache(maxsize=1)
def _keys() -> npt.NDArray[np.uint64]:
    numbers = np.arange(1, 2 * _WORDS + 1, dtype=np.uint64) * np.uint64(GAMMA)
    return mix(numbers).reshape(2, _WORDS)


def _file(path: str) -> Any:
    """Return what a file holds, or the text where no file has this path."""
    try:
        if not Path(path).is_file():  # a pipe, say, which waits for its writer
            return path
        hashed, size = blake2b(digest_size=16), 0
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
                size += len(block)
    except (OSError, ValueError):  # a text that begins with a slash
        return path
    return FILE, size, hashed.digest()


def _plain_object(value: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(value, FunctionType) and "<" in value.__qualname__:  # another may be named so
        raise IncomparableError(value)
    if isinstance(value, _NAMED):
        return "name", _name(value)
    if isinstance(value, bytearray | memoryview):
        return "bytes", bytes(value)
    if isinstance(value, PurePath):
        found = _file(str(value))
        return ("path", found) if isinstance(found, str) else found
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
    except Exception as error:  # the class decides what may fail
        raise IncomparableError(kind) from error
    return "object", *(plain(part, inside) for part in (function, arguments, state, lists, pairs))


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return f"{getattr(value, '__module__', '')}.{name}"
