"""Arrays and objects of predictions, as files hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import kind_of, to_numpy

_PLAIN = (str, int, float, bool, type(None))


def of_array(name: str, value: Any, *, rows: bool = True) -> npt.NDArray[Any] | None:
    """Return a copy of an array of any framework in NumPy, in native byte order and in C's order.

    It is None if the value is no array of numbers.

    Raises:
        UsageError: It is an array without rows, or of a dtype that can't be stored.
    """
    framework = kind_of(value)
    if framework == "numpy" and (
        isinstance(value, list | str | bytes) or not hasattr(value, "shape")
    ):
        return None
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if framework == "numpy" and np.asarray(value).dtype.kind in "OUS":
        return None
    if framework == "tensorflow":
        dtype = value.dtype.name
    try:
        found = to_numpy(value)
    except (UsageError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"predictions have {name!r} of {dtype or type(value).__name__}, which can't be stored "
            f"({error}); return real numbers or truth values, or convert them with record="
        ) from error
    if found.dtype.itemsize > 8:
        raise UsageError(
            f"predictions have {name!r} of {found.dtype}, which files can't hold; convert them to "
            f"float64 with record="
        )
    if rows and found.ndim == 0:
        raise UsageError(
            f"predictions have a single number in {name!r}; return one row for each sample"
        )
    return np.array(found, dtype=found.dtype.newbyteorder("="), order="C")


def plain(name: str, value: Any) -> Any:
    """Return an object as JSON can hold it.

    Raises:
        UsageError: It holds an object that JSON can't hold.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [plain(name, item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): plain(name, item) for key, item in value.items()}
    if isinstance(value, str | int | float) and not isinstance(value, np.generic):
        base = next(kind for kind in (str, int, float) if isinstance(value, kind))
        return base(value)
    if kind_of(value) != "numpy" or isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.str_):
            return str(value)
        array = of_array(name, value, rows=False)
        if array is not None:
            return array.tolist()
        if isinstance(value, np.ndarray):
            return plain(name, value.tolist())
    raise UsageError(
        f"predictions have an object of type {type(value).__name__} in {name!r}, which files can't "
        f"hold; return strings, numbers, None, arrays, and lists and dicts of these, or convert "
        f"them with record="
    )
