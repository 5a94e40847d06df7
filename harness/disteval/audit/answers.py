"""The answers of a user's function: what each rank returned, in plain numbers and lists."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of, to_numpy

Value = float | list[float]
Result = dict[str, Value]
Fetched = Sequence[tuple[int, int]]
"""The fetches of a rank, in order; see `disteval.audit.case.Fetches.take`."""

LISTS = ("ids", "outputs")
"""The names of results that have one entry for each sample."""

SCORES = "scores of outputs"
"""The name of what `read_result` adds where outputs are scores, see `_ranges`."""

_EXACT = ("count", *LISTS)

_EXAMPLE = "return a dict of names and numbers, such as {'accuracy': right / seen}"
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6
# Of a quotient of two rounded numbers that is itself rounded; bfloat16 contains the other's name.
_COARSE = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True)
class Answer:
    """The answer of one rank to one call.

    Attributes:
        result: The numbers by name; None if the rank returned None.
        logged: The numbers that were logged on this rank, by name.
        ordered: Whether the outputs are promised to be in the order of the data set.
        roundings: The relative errors that numbers may have which were computed with fewer bits
            than float32 has, by name.
        refused: Why the result can't be judged; an empty text if it can.
        fetched: The fetches of this rank.
        in_training: Whether the module of the case was called in training mode.
        parts: The files that a job has written.
        rounding: The relative error of the scores and losses that the rank computed.
        failed: Whether the merge of damaged parts failed, as it should.
    """

    result: Result | None = None
    ordered: bool = False
    roundings: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    fetched: Fetched = ()
    in_training: bool = False
    parts: Sequence[Path] = ()
    rounding: float = 0.0
    failed: bool = False
    logged: Result = field(default_factory=dict)


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
        if name == "outputs" and len(shape_of(value)) == 2:
            found[SCORES] = _ranges(to_numpy(value))
    return found, bool(ordered)


def first_result(answers: Sequence[Answer]) -> Result:
    """Return the result of the first rank that has one; an empty one if none has."""
    return next((answer.result for answer in answers if answer.result is not None), {})


def with_logged(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers with what was logged among the results; trainers log on some ranks alone.

    A rank that logged and returned nothing is taken to have returned what the first one did.
    """
    returned = first_result(answers)
    logged = {name: v for answer in reversed(answers) for name, v in answer.logged.items()}
    return [
        answer
        if answer.result is None and not answer.logged
        else replace(answer, result=logged | answer.logged | (answer.result or returned))
        for answer in answers
    ]


def rounding_of(value: Any) -> float:
    """Return the relative error that a value of its type may have; 0.0 if it has float32's bits."""
    dtype = str(getattr(value, "dtype", ""))
    return next((error for name, error in _COARSE.items() if name in dtype), 0.0)


def rounds_to(number: float) -> dict[str, float]:
    """Return what a number becomes in the types with fewer bits than float32, by their names."""
    with np.errstate(over="ignore"):
        single = np.float32(number)
        bits = int(single.view(np.uint32))
        half = float(np.float16(single))
    # To the nearest, and of two to the even one; bfloat16 is the upper half of a float32.
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return {"bfloat16": float(np.uint32(upper).view(np.float32)), "float16": half}


def roundings_of(returned: Any, least: float) -> dict[str, float]:
    """Return the relative errors that results may have; see `Answer`.

    Args:
        returned: What the function returned.
        least: The error of scores and losses. Numbers of samples are not computed from them, and
            lists are held to the truth entry by entry.
    """
    named = returned if isinstance(returned, Mapping) else {"result": returned}
    found = {
        str(name): max(0.0 if name in _EXACT else least, rounding_of(value))
        for name, value in named.items()
    }
    return {name: error for name, error in found.items() if error}


def is_close(one: Value, other: Value, rounding: float = 0.0) -> bool:
    """Return whether two values are equal but for the rounding of float32, or for a larger one."""
    if isinstance(one, list) or isinstance(other, list):
        both = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
        return both and all(is_close(*pair, rounding) for pair in zip(one, other, strict=True))  # type: ignore[arg-type]
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=max(_RELATIVE, rounding), abs_tol=_ABSOLUTE)


def _number(what: str, value: Any) -> Value:
    try:
        exact = isinstance(value, numbers.Number) and not hasattr(value, "dtype")
        array = to_numpy(float(value) if exact else value)
    except (UsageError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{what} has the type {type(value).__name__}, which is not a number ({error}); "
            f"{_EXAMPLE}, and None on ranks other than 0 if only rank 0 has it"
        ) from None
    if array.size == 1:
        return float(array.reshape(()))
    return [float(each) for each in array.reshape(-1)]


def _ranges(scores: npt.NDArray[Any]) -> list[float]:
    """Return the smallest and the largest scores of each predicted class, class by class.

    What a function makes of the scores of one sample, it must make of all with that prediction.
    """
    best = scores.argmax(axis=1)
    alike = (scores[best == each] for each in np.unique(best))
    ends = [end for rows in alike for end in (rows.min(axis=0), rows.max(axis=0))]
    return [float(each) for end in ends for each in end]


def _numbers(what: str, value: Any, name: str) -> list[float]:
    shape = shape_of(value)
    if name == "outputs" and len(shape) == 2:
        value = np.argmax(to_numpy(value), axis=1)
    elif len(shape) != 1:
        wanted = "(N,) or scores of shape (N, 16)" if name == "outputs" else "(N,)"
        raise UsageError(f"{what} has the shape {shape}; it must have the shape {wanted}")
    return [float(each) for each in to_numpy(value)]
