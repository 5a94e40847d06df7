"""A reader of pickles that hold arrays, strings, numbers, lists and dicts, and nothing else.

CIFAR-10's Python layout consists of pickles, and `pickle.load` runs any function that a file names.
Here a file may only name the functions that rebuild a NumPy array, and gets substitutes for them
that check their arguments.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import reprlib
from typing import Any, ClassVar

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
        _check_opcodes(data)
        return _ArrayUnpickler(data).load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can make the unpickler raise anything
        raise DataError(f"{name} can't be read as a pickle: {describe_error(error)}") from error


def shown(value: Any) -> str:
    """Return a short repr of a value from a file, which may be of any size."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2

_MAX_INSTRUCTIONS = 500_000
"""Far more instructions than a file of CIFAR-10 has: 10,000 labels and as many file names."""

_MAX_TUPLES = 1000
"""Far more tuples than a file of CIFAR-10 has, and few enough to hash when they are nested."""

_MAX_INT_BITS = 64
"""Labels and shapes take less; larger integers can be chosen so that their hashes are equal."""


def _check_opcodes(data: bytes) -> None:
    """Refuse pickles that would take much memory or time, or end the process.

    One byte can create an object of a hundred. The unpickler allocates room for twice a memo index,
    so five bytes can demand 64 GiB; writers count up from 0 or 1, by one at most for each
    instruction. Deeply nested tuples overflow the stack when they are hashed as keys of a dict, and
    many keys with one hash take hours.
    """
    tuples = 0
    for count, (opcode, index, at) in enumerate(pickletools.genops(data)):
        if count >= _MAX_INSTRUCTIONS:
            raise DataError(f"has more than {_MAX_INSTRUCTIONS} instructions")
        if isinstance(index, int) and index.bit_length() > _MAX_INT_BITS:
            raise DataError(f"has an integer of {index.bit_length()} bits at offset {at}")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(index or 0) > count:
            raise DataError(f"has the memo index {index} at offset {at}")
        tuples += "TUPLE" in opcode.name
        if tuples > _MAX_TUPLES:
            raise DataError(f"has more than {_MAX_TUPLES} tuples")


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
    """A substitute for ``codecs.encode``, with which Python 3 writes bytes in protocol 2.

    ``left`` is the number of bytes that a file may still encode: a text can be named many times.
    """

    left: ClassVar[int] = 0

    def __new__(cls, text: Any, encoding: Any) -> _Encoded:
        if not isinstance(text, str) or encoding != "latin1":
            raise DataError(f"asks for text to be encoded as {shown(encoding)}")
        cls.left -= len(text)
        if cls.left < 0:
            raise DataError("encodes more text than it has")
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
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        encoded = type("_EncodedHere", (_Encoded,), {"left": len(data)})
        self._admitted = _ADMITTED | {("_codecs", "encode"): encoded}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            asked = f"{module}.{name}"[:100]
            raise DataError(f"asks for {asked}, which no CIFAR-10 file needs; it was not run")
        return self._admitted[module, name]
