"""Reading pickles of arrays, strings and lists, and of nothing else.

CIFAR-10's Python layout is pickles. `pickle.load` would run whatever a file asks for; here a file
may name what rebuilds a NumPy array, and gets stand-ins that check what they are asked to build.
"""

from __future__ import annotations

import codecs
import io
import pickle
from typing import Any

import numpy as np

from harness.errors import DataError


def load_arrays(data: bytes, name: str) -> Any:
    """Rebuild the arrays, strings, numbers, lists and dicts of a pickle.

    Args:
        data: The pickle's bytes; strings that Python 2 wrote come back as bytes.
        name: What errors call it.

    Raises:
        DataError: It asks for anything else, or is damaged.
    """
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle fails in as many ways as there are opcodes
        raise DataError(f"{name} is no readable pickle: {type(error).__name__}: {error}") from error


class PickledArray:
    """Stands for an array while its pickle is read; becomes one when its state is set."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, _fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise DataError("holds an array of something other than plain bytes")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise DataError(f"holds an array of shape {shape!r}")
        # frombuffer and reshape allocate nothing, so a lie about the shape is an error, no more.
        array = np.frombuffer(data, dtype=np.uint8)
        self.value = array.reshape(shape, order="F" if _fortran else "C")


class _Dtype:
    """Stands for the only dtype that pictures have."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in ("u1", b"u1"):
            raise DataError(f"holds an array of dtype {name!r}; pictures are u1")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which one byte does not have."""


def _new_array(_subtype: Any, _shape: Any, _typecode: Any) -> PickledArray:
    return PickledArray()


def _encode(text: Any, encoding: Any) -> bytes:
    # How Python 3 writes bytes in protocol 2.
    if not isinstance(text, str) or encoding != "latin1":
        raise DataError(f"asks for text to be encoded as {encoding!r}")
    return codecs.encode(text, "latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise DataError(
                f"asks for {module}.{name}, which no CIFAR-10 file needs; it was not run"
            )
        return _ADMITTED[module, name]
