"""The length of one sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from disteval.arguments import is_count
from disteval.errors import SampleError, UsageError, describe_error

Measure = str | Callable[[Any], int] | None
"""How the length of one sample is found, see `length_of`."""

LONGEST = 1 << 40
"""The longest length that is taken, so that int64 holds the cost of a batch."""

FIELDS = ("input_ids", "tokens")
"""The fields whose length is a sample's length where the caller names no other."""


def length_of(sample: Any, length: Measure = None) -> int:
    """Return the length of one sample.

    Args:
        sample: The sample.
        length: A function of the sample; or the name of a field, which holds a number or anything
            with a length. By default the length is that of the field ``input_ids`` or ``tokens``
            of a dict, of the first field of a tuple, or of the sample itself.

    Raises:
        UsageError: The sample has no such field, or its length is not a whole number from 0 to
            2**40.
    """
    if callable(length):
        return _checked(length(sample), "length(sample)")
    if length is not None:
        return _checked(_size_of(_field(sample, length)), f"the field {length!r}")
    if isinstance(sample, Mapping):
        names = [name for name in FIELDS if name in sample]
        found = _field(sample, *(names[:1] or FIELDS))
        return _checked(_size_of(found), f"the field {names[0]!r}")
    return _checked(_size_of(sample[0] if isinstance(sample, tuple) else sample), "the sample")


def _field(sample: Any, *names: str) -> Any:
    """Return the first of these fields; an error names all of them."""
    try:
        return sample[names[0]]
    except (KeyError, TypeError, IndexError, ValueError):
        known = f" with the keys {list(sample)}" if isinstance(sample, Mapping) else ""
        raise UsageError(
            f"the sample is a {type(sample).__name__}{known}, and has no field "
            f"{' or '.join(map(repr, names))} with its length; give length= the name of another "
            f"field, a function of a sample, or an array with the length of each sample"
        ) from None


def _size_of(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if hasattr(value, "__len__") else value
    return shape[0] if len(shape) else value


def _checked(found: Any, what: str) -> int:
    value = found.item() if hasattr(found, "item") else found
    if not is_count(value, 0, LONGEST):
        raise UsageError(
            f"{what} gives the length {found!r:.100}; a length is a whole number from 0 to 2**40"
        )
    return int(value)


def length_of_sample(sample: Any, number: int, length: Measure) -> int:
    """Return the length of a sample, which an error names; see `length_of`."""
    try:
        return length_of(sample, length)
    except UsageError as error:
        raise UsageError(f"sample {number}: {error}") from error
    except Exception as error:
        raise SampleError(number, f"has no length: {describe_error(error)}") from error
