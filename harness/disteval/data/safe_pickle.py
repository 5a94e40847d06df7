"""Reading pickles of arrays, strings and lists, and of nothing else.

CIFAR-10's Python layout is pickles. `pickle.load` would run whatever a file asks for; here a file
may name what rebuilds a NumPy array, and gets stand-ins that check what they are asked to build.
"""

from __future__ import annotations

import codecs
import io
import pickle
import pickletools
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from disteval.errors import DataError


def load_arrays(data: bytes, name: str) -> Any:
    """Rebuild the arrays, strings, numbers, lists and dicts of a pickle.

    Args:
        data: The pickle's bytes; strings that Python 2 wrote come back as bytes.
        name: What errors call it.

    Raises:
        DataError: It asks for anything else, or is damaged.
    """
    try:
        _check_opcodes(data)
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle fails in as many ways as there are opcodes
        raise DataError(f"{name} is no readable pickle: {type(error).__name__}: {error}") from error


def shown(value: Any) -> str:
    """A short repr of what a file holds, however deep its lists and long its numbers."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a very long {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2

_MAX_TUPLES = 1000
"""Far more than a file of CIFAR-10 has, and few enough to be nested in each other."""


def _check_opcodes(data: bytes) -> None:
    """Refuse what no writer gives, and what would end the process instead of raising.

    The unpickler makes room for twice a memo index, so that five bytes can ask for 64 GiB. Writers
    count up from 0 or 1, one at most for each instruction. Hashing a tuple of tuples of tuples, as
    a dict does with its keys, overflows the stack.
    """
    tuples = 0
    for count, (opcode, index, at) in enumerate(pickletools.genops(data)):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(index or 0) > count:
            raise DataError(f"has the memo index {shown(index)} at offset {at}")
        tuples += "TUPLE" in opcode.name
        if tuples > _MAX_TUPLES:
            raise DataError(f"has more than {_MAX_TUPLES} tuples")


class PickledArray:
    """Stands for an array while its pickle is read; becomes one when its state is set."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, _fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise DataError("holds an array of something other than plain bytes")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise DataError(f"holds an array of shape {shown(shape)}")
        # frombuffer and reshape allocate nothing, so a lie about the shape is an error, no more.
        array = np.frombuffer(data, dtype=np.uint8)
        self.value = array.reshape(shape, order="F" if _fortran else "C")


class _Dtype:
    """Stands for the only dtype that pictures have."""

    def __new__(cls, name: Any, *_: Any) -> _Dtype:
        # Not in __init__, which a pickle can leave out.
        if name not in ("u1", b"u1"):
            raise DataError(f"holds an array of dtype {shown(name)}; pictures are u1")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which one byte does not have."""


def _new_array(_subtype: Any, _shape: Any, _typecode: Any) -> PickledArray:
    return PickledArray()


def _encode(text: Any, encoding: Any) -> bytes:
    # How Python 3 writes bytes in protocol 2.
    if not isinstance(text, str) or encoding != "latin1":
        raise DataError(f"asks for text to be encoded as {shown(encoding)}")
    return codecs.encode(text, "latin1")


class _Function:
    """A function that a pickle may call; on a plain one it could set attributes as well."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, _state: Any) -> None:
        raise DataError("sets attributes of a function")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Function(_new_array),
    ("numpy._core.multiarray", "_reconstruct"): _Function(_new_array),
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Function(_encode),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            asked = f"{module}.{name}"[:100]
            raise DataError(f"asks for {asked}, which no CIFAR-10 file needs; it was not run")
        return _ADMITTED[module, name]
