"""The length of one sample, and what batches are made by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_count, check_flag, is_count
from disteval.data.digests import digest_of
from disteval.errors import SampleError, UsageError, describe_error

Measure = str | Callable[[Any], int] | None
"""How the length of one sample is found, see `length_of`."""

Length = Measure | Sequence[int] | npt.NDArray[Any]
"""How the lengths of all samples are found, see `disteval.data.lengths.gather_lengths`."""

LONGEST = 1 << 40
"""The longest length that is taken, so that int64 holds the cost of a batch."""

FIELDS = ("input_ids", "tokens")
"""The fields whose length is a sample's length where the caller names no other."""


@dataclass(frozen=True, eq=False)
class ByLength:
    """Batches of samples by their lengths; they do not depend on the number of ranks.

    Args:
        length: The lengths of all samples, an array of integers; or a function of a sample; or the
            name of a field. None takes the field ``input_ids`` or ``tokens``, or the sample's own.
        max_tokens: The most that the number of samples in a batch, times the longest of their
            lengths, may be; None sets no limit but ``batch_size``.
        sort: Whether samples of like lengths are put into one batch, the longest first. Otherwise
            a batch holds consecutive samples.
        batches: The numbers of the samples of each batch, where they are made already, in place of
            ``max_tokens`` and ``sort``. Together they have each sample once, and none has more than
            ``batch_size``.

    Raises:
        UsageError: A value is of another kind or out of range, or nothing is to be done by length.
    """

    length: Length = None
    max_tokens: int | None = None
    sort: bool = True
    batches: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        check_flag("sort", self.sort)
        if self.batches is not None and (self.max_tokens is not None or not self.sort):
            raise UsageError("ByLength(batches=…) has its batches; leave max_tokens and sort out")
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens)
        elif not self.sort:
            raise UsageError("ByLength(sort=False) needs max_tokens; give it, or no ByLength")

    def measure(self) -> Measure:
        """Return how the length of one element of a stream is found.

        Raises:
            UsageError: The lengths are an array.
        """
        if self.batches is not None:
            raise UsageError("ByLength(batches=…) needs samples that have numbers; give a list")
        if isinstance(self.length, str | None) or callable(self.length):
            return self.length
        raise UsageError(
            f"length is a {type(self.length).__name__}, which needs samples that have numbers, and "
            f"a stream has none before it was read; give a function of a sample, or the name of a "
            f"field"
        )

    def __str__(self) -> str:
        """Return a text that is the same on every rank if the values are."""
        length = repr(self.length)
        if callable(self.length):
            length = "a function"
        elif not isinstance(self.length, str | None):
            length = f"an array (digest {digest_of(np.asarray(self.length)).hex()})"
        how = f"max_tokens={self.max_tokens}, sort={self.sort}"
        if self.batches is not None:
            how = f"{len(self.batches)} batches (digest {digest_of(self.batches).hex()})"
        return f"ByLength(length={length}, {how})"


def length_of(sample: Any, number: int, length: Measure) -> int:
    """Return the length of one sample.

    Args:
        sample: The sample.
        number: Its number, for an error.
        length: A function of the sample; or the name of a field, which holds a number or anything
            with a length. By default the length is that of the field ``input_ids`` or ``tokens``
            of a dict, of the first field of a tuple, or of the sample itself.

    Raises:
        UsageError: The sample has no such field, or its length is not a whole number from 0 to
            2**40.
        SampleError: It has no length for another reason.
    """
    try:
        if callable(length):
            found, what = length(sample), "length(sample)"
        elif length is not None:
            found, what = _size_of(_field(sample, length)), f"the field {length!r}"
        elif isinstance(sample, Mapping):
            names = [name for name in FIELDS if name in sample][:1]
            found, what = _size_of(_field(sample, *(names or FIELDS))), f"the field {names[0]!r}"
        else:
            found, what = _size_of(sample[0] if isinstance(sample, tuple) else sample), "the sample"
        value = found.item() if hasattr(found, "item") else found
        if not is_count(value, 0, LONGEST):
            raise UsageError(
                f"{what} gives the length {found!r:.100}; a length is a whole number from 0 to "
                f"2**40"
            )
        return int(value)
    except UsageError as error:
        raise UsageError(f"sample {number}: {error}") from error
    except Exception as error:
        raise SampleError(number, f"has no length: {describe_error(error)}") from error


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
