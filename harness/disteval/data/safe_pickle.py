"""A reader of pickles that hold arrays, strings, numbers, lists and dicts, and nothing else.

CIFAR-10's Python layout consists of pickles, and `pickle.load` runs any function that a file names.
Here a file may only name the functions that rebuild a NumPy array, and gets substitutes for them
that check their arguments.
"""

from __future__ import annotations

import io
import pickle
import reprlib
from typing import Any

import numpy as np

from disteval.errors import DataError, describe_error


def load_arrays(data: bytes, name: str) -> Any:
    """Rebuild the arrays, strings, numbers, lists and dicts of a pickle.

    Args:
        data: The pickle's bytes; strings that Python 2 wrote become bytes.
        name: The file's name in messages.

    Raises:
        DataError: The pickle is damaged or holds anything else.
    """
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can make the unpickler raise anything
        raise DataError(f"{name} can't be read as a pickle: {describe_error(error)}") from error


def shown(value: Any) -> str:
    """Return a short repr of a value from a file, which may be of any size."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of too many digits
        return f"a value of type {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2


class PickledArray:
    """A substitute for an array and for the function that creates one.

    ``value`` is the array once its state was set.
    """

    value: Any = None

    def __init__(self, *_: Any) -> None:
        """Ignore the class, the shape and the dtype of the empty array that is asked for."""

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, _fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise DataError("holds an array of something other than plain bytes")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise DataError(f"holds an array of shape {shown(shape)}")
        # frombuffer and reshape allocate nothing, so a wrong shape is only an error.
        array = np.frombuffer(data, dtype=np.uint8)
        self.value = array.reshape(shape, order="F" if _fortran else "C")


class _Dtype:
    """A substitute for the only dtype that pictures have."""

    def __new__(cls, name: Any, *_: Any) -> _Dtype:
        # Not in __init__, which a pickle can skip.
        if name not in ("u1", b"u1"):
            raise DataError(f"holds an array of dtype {shown(name)}; pictures are u1")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment, which one byte does not have."""


class _Encoded(bytes):
    """A substitute for ``codecs.encode``, with which Python 3 writes bytes in protocol 2."""

    def __new__(cls, text: Any, encoding: Any) -> _Encoded:
        if not isinstance(text, str) or encoding != "latin1":
            raise DataError(f"asks for text to be encoded as {shown(encoding)}")
        return super().__new__(cls, text, "latin1")

    def __setstate__(self, _state: Any) -> None:
        raise DataError("sets attributes of bytes")


# Classes with a __setstate__, so that a pickle can't set attributes of what it names.
_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            asked = f"{module}.{name}"[:100]
            raise DataError(f"asks for {asked}, which no CIFAR-10 file needs; it was not run")
        return _ADMITTED[module, name]
