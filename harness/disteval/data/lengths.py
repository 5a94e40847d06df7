"""The lengths of samples, which ranks read together."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_count
from disteval.contract import BaseDistBackend
from disteval.data.collate import fetch
from disteval.errors import RankError, SampleError, UsageError, describe_error

Measure = str | Callable[[Any], int] | None
"""How the length of one sample is found, see `length_of`."""

Length = Measure | Sequence[int] | npt.NDArray[Any]
"""How the lengths of all samples are found, see `gather_lengths`."""

FIELDS = ("input_ids", "tokens")
"""The fields whose length is a sample's length where the caller names no other."""

_CHUNK = 1024  # samples are read for their lengths so many at a time


def length_of(sample: Any, length: Measure = None) -> int:
    """Return the length of one sample.

    Args:
        sample: The sample.
        length: A function of the sample; or the name of a field, which holds a number or anything
            with a length. By default the length is that of the field ``input_ids`` or ``tokens``
            of a dict, of the first field of a tuple, or of the sample itself.

    Raises:
        UsageError: The sample has no such field, or its length is not a whole number from 0 up.
    """
    if callable(length):
        return _checked(length(sample), "length(sample)")
    if length is not None:
        return _checked(_size_of(_field(sample, length)), f"the field {length!r}")
    if isinstance(sample, Mapping):
        name = next((name for name in FIELDS if name in sample), FIELDS[0])
        return _checked(_size_of(_field(sample, name)), f"the field {name!r}")
    return _checked(_size_of(sample[0] if isinstance(sample, tuple) else sample), "the sample")


def _field(sample: Any, name: str) -> Any:
    try:
        return sample[name]
    except (KeyError, TypeError, IndexError, ValueError):
        known = f" with the keys {list(sample)}" if isinstance(sample, Mapping) else ""
        raise UsageError(
            f"the sample is a {type(sample).__name__}{known}, and has no field {name!r} with its "
            f"length; give length= the name of another field, a function of a sample, or an array "
            f"with the length of each sample"
        ) from None


def _size_of(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if hasattr(value, "__len__") else value
    return shape[0] if len(shape) else value


def _checked(found: Any, what: str) -> int:
    value = found.item() if hasattr(found, "item") else found
    if not is_count(value, 0):
        raise UsageError(
            f"{what} gives the length {found!r:.100}; a length is a whole number from 0 up"
        )
    return int(value)


def length_setting(length: Length) -> str:
    """Return a short text about ``length`` that is the same on every rank if ``length`` is."""
    if length is None or isinstance(length, str):
        return repr(length)
    if callable(length):
        return "a function"
    array = np.ascontiguousarray(np.asarray(length))
    checksum = 0 if array.dtype.hasobject else zlib.crc32(array.data)
    return f"{array.dtype} of shape {array.shape} with the CRC-32 {checksum:08x}"


def gather_lengths(
    samples: Any, size: int, length: Length, backend: BaseDistBackend
) -> npt.NDArray[np.int64]:
    """Return the length of each sample; every rank must call it.

    If the lengths are an array, or a field of a dict of arrays, nothing is read and nothing is
    sent. Otherwise each rank reads its share of the samples, and all lengths are gathered.

    Args:
        samples: An array, a dict or tuple of arrays, or anything with ``__getitem__``.
        size: The number of samples.
        length: The lengths, int of shape (size,); or what `length_of` takes.
        backend: Carries the lengths. Every rank must give the same ``length``.

    Raises:
        UsageError: On every rank, when a length is no whole number from 0 up.
        RankError: On every rank, when a rank could not read a sample or its length.
    """
    if isinstance(length, str):
        known = _column(samples, length)
        if known is not None:
            return _checked_array(known, size, f"the field {length!r}")
    elif length is not None and not callable(length):
        return _checked_array(np.asarray(length), size, "length")
    begin, end = (size * r // backend.world_size for r in (backend.rank, backend.rank + 1))
    mine: npt.NDArray[np.int64] = np.zeros(0, np.int64)
    failure: Exception | None = None
    try:
        mine = _read_lengths(samples, range(begin, end), length)
    except Exception as error:  # the other ranks wait in the collective, where they are told
        failure = error
    sent = mine.astype(np.min_scalar_type(mine.max(initial=0)))
    note = failure and (isinstance(failure, UsageError), describe_error(failure), str(failure))
    gathered = backend.all_gather_object((sent, note))
    for rank, (_, failed) in enumerate(gathered):
        if failed:
            cause = failure if rank == backend.rank else None
            is_usage, described, message = failed
            if is_usage:
                raise UsageError(message) from cause
            raise RankError(rank, f"failed: {described}") from cause
    return np.concatenate([lengths for lengths, _ in gathered]).astype(np.int64)


def _column(samples: Any, name: str) -> npt.NDArray[Any] | None:
    """Return a field that holds the lengths of all samples, so that no sample must be read."""
    column = samples.get(name) if isinstance(samples, Mapping) else None
    is_number = isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iu"
    return column if is_number else None


def _checked_array(found: npt.NDArray[Any], size: int, what: str) -> npt.NDArray[np.int64]:
    if found.shape != (size,) or (size and found.dtype.kind not in "iu"):
        raise UsageError(
            f"{what} is an array of {found.dtype} of shape {found.shape}; it must hold one whole "
            f"number for each of the {size} samples"
        )
    wrong = np.flatnonzero(found < 0)
    if len(wrong):
        raise UsageError(
            f"{what} gives sample {wrong[0]} the length {found[wrong[0]]}; a length is a whole "
            f"number from 0 up"
        )
    return found.astype(np.int64)


def _read_lengths(samples: Any, share: range, length: Measure) -> npt.NDArray[np.int64]:
    if isinstance(length, str) and hasattr(samples, "select_columns"):
        samples = samples.select_columns([length])  # a Hugging Face data set reads no others
    found = np.zeros(len(share), np.int64)
    for start in range(0, len(share), _CHUNK):
        numbers = np.array(share[start : start + _CHUNK])
        for place, sample in enumerate(fetch(samples, numbers), start):
            found[place] = length_of_sample(sample, share[place], length)
    return found


def length_of_sample(sample: Any, number: int, length: Measure) -> int:
    """Return the length of a sample, which an error names; see `length_of`."""
    try:
        return length_of(sample, length)
    except UsageError as error:
        raise UsageError(f"sample {number}: {error}") from error
    except Exception as error:
        raise SampleError(number, f"has no length: {describe_error(error)}") from error
