"""Arrays and objects of predictions, to what files hold and back."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import kind_of, to_numpy

_PLAIN = (str, int, float, bool, type(None))


class Found(NamedTuple):
    """An array of a framework in NumPy.

    Attributes:
        values: A copy in native byte order.
        facts: The arguments of a `Field` that restore it.
    """

    values: npt.NDArray[Any]
    facts: dict[str, Any]


def of_array(name: str, value: Any, *, rows: bool = True) -> Found | None:
    """Return a copy of an array of any framework; None if the value is no array of numbers.

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
    stored = np.array(found, dtype=found.dtype.newbyteorder("="), order="C")
    whole = framework != "numpy" or (type(value) is np.ndarray and value.dtype.isnative)
    if framework == "torch":
        torch = sys.modules["torch"]
        whole = type(value) is torch.Tensor and value.layout == torch.strided
    facts = {
        "dtype": dtype, "stored": stored.dtype.str, "framework": framework, "exact": whole,
        "device": value.device.type if framework == "torch" else "cpu",
    }  # fmt: skip
    return Found(stored, facts)


def from_numpy(values: npt.NDArray[Any], dtype: str, framework: str, device: str) -> Any:
    """Return the array that `of_array` was given, on a device of the same kind if there is one."""
    if framework == "torch":
        torch = import_module("torch")
        tensor = torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype))
        is_there = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
        return tensor.to(device) if is_there else tensor
    if framework == "jax":
        return import_module("jax.numpy").asarray(values, dtype=dtype)
    if framework == "tensorflow":
        return import_module("tensorflow").cast(values, dtype)
    if dtype == "bfloat16":  # a dtype that this package adds to NumPy
        return values.astype(import_module("ml_dtypes").bfloat16)
    return values


def plain(name: str, value: Any) -> tuple[Any, bool]:
    """Return an object as JSON can hold it, and whether JSON gives back the very same.

    Raises:
        UsageError: It holds an object that JSON can't hold.
    """
    if type(value) in _PLAIN:
        return value, True
    if type(value) is list:
        found = [plain(name, item) for item in value]
        return [item for item, _ in found], all(same for _, same in found)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        named = {str(key): plain(name, item) for key, item in value.items()}
        same = type(value) is dict and all(same for _, same in named.values())
        return {key: item for key, (item, _) in named.items()}, same
    if isinstance(value, tuple):
        return plain(name, list(value))[0], False
    if isinstance(value, str | int | float) and not isinstance(value, np.generic):
        base = next(kind for kind in (str, int, float) if isinstance(value, kind))
        return base(value), False
    if kind_of(value) != "numpy" or isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.str_):
            return str(value), False
        array = of_array(name, value, rows=False)
        if array is not None:
            return array.values.tolist(), False
        if isinstance(value, np.ndarray):
            return plain(name, value.tolist())[0], False
    raise UsageError(
        f"predictions have an object of type {type(value).__name__} in {name!r}, which files can't "
        f"hold; return strings, numbers, None, arrays, and lists and dicts of these, or convert "
        f"them with record="
    )
