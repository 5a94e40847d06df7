"""The answers of a user's function: what each rank returned, in plain numbers and lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of, to_numpy

Value = float | list[float]
Result = dict[str, Value]
Fetched = Mapping[int, Sequence[int]]

LISTS = ("ids", "outputs")
"""The names of results that have one entry for each sample."""

_EXAMPLE = "return a dict of names and numbers, such as {'accuracy': right / seen}"
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6


@dataclass(frozen=True)
class Answer:
    """The answer of one rank to one call.

    Attributes:
        result: The numbers by name; None if the rank returned None.
        ordered: Whether the outputs are promised to be in the order of the data set.
        refused: Why the result can't be judged; an empty text if it can.
        fetched: The fetches of each sample by this rank; see `disteval.audit.case.Fetches.take`.
    """

    result: Result | None = None
    ordered: bool = False
    refused: str = ""
    fetched: Fetched = field(default_factory=dict)


def read_result(returned: Any) -> tuple[Result | None, bool]:
    """Turn what a user's function returned into plain numbers.

    Returns:
        The numbers by name, and whether the outputs are promised to be in order.

    Raises:
        UsageError: It is neither None, nor a number, nor a dict of names and numbers.
    """
    if returned is None:
        return None, False
    if not isinstance(returned, Mapping):
        return {"result": _number("the result", returned)}, False
    if not returned:
        raise UsageError(f"it returned an empty dict; {_EXAMPLE}")
    named = {str(name): value for name, value in returned.items()}
    ordered = named.pop("ordered", False)
    found: Result = {}
    for name, value in named.items():
        what = f"the value of {name!r}"
        found[name] = _numbers(what, value, name) if name in LISTS else _number(what, value)
    return found, bool(ordered)


def is_close(one: Value, other: Value) -> bool:
    """Return whether two values are equal but for the rounding of float32."""
    if isinstance(one, list) or isinstance(other, list):
        both = isinstance(one, list) and isinstance(other, list)
        return both and len(one) == len(other) and all(map(is_close, one, other))  # type: ignore[arg-type]
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def _number(what: str, value: Any) -> Value:
    try:
        array = to_numpy(value)
    except (UsageError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{what} has the type {type(value).__name__}, which is not a number ({error}); "
            f"{_EXAMPLE}, and None on ranks other than 0 if only rank 0 has it"
        ) from None
    if array.size == 1:
        return float(array.reshape(()))
    return [float(each) for each in array.reshape(-1)]


def _numbers(what: str, value: Any, name: str) -> list[float]:
    shape = shape_of(value)
    if name == "outputs" and len(shape) == 2:
        value = np.argmax(to_numpy(value), axis=1)
    elif len(shape) != 1:
        wanted = "(N,) or scores of shape (N, 16)" if name == "outputs" else "(N,)"
        raise UsageError(f"{what} has the shape {shape}; it must have the shape {wanted}")
    return [float(each) for each in to_numpy(value)]
