"""The lengths of samples, which ranks read together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.contract import BaseDistBackend
from disteval.data.length_of import LONGEST, Length, Measure, length_of
from disteval.data.samples import Columns, Items, fetch
from disteval.errors import RankError, UsageError, describe_error

_CHUNK = 1024  # samples are read for their lengths so many at a time


def gather_lengths(
    samples: Any, size: int, length: Length, backend: BaseDistBackend
) -> npt.NDArray[np.int64]:
    """Return the length of each sample; every rank must call it.

    If the lengths are an array, or a field of a dict of arrays, nothing is read and nothing is
    sent. Otherwise each rank reads its share of the samples, and all lengths are gathered.

    Args:
        samples: `Columns`, `Items` or anything with ``__getitem__``.
        size: The number of samples whose lengths are wanted, from the first.
        length: The lengths of all samples, an array of integers; or what `length_of` takes.
        backend: Carries the lengths. Every rank must give the same ``length``.

    Raises:
        UsageError: On every rank, when a length is no whole number from 0 to 2**40.
        RankError: On every rank, when a rank could not read a sample or its length.
    """
    samples = samples.items if isinstance(samples, Items) else samples
    if isinstance(length, str):
        known = samples.column(length) if isinstance(samples, Columns) else None
        if isinstance(known, np.ndarray) and known.ndim == 1 and known.dtype.kind in "iu":
            return _checked_array(known, len(samples), f"the field {length!r}")[:size]
    elif length is not None and not callable(length):
        return _checked_array(np.asarray(length), len(samples), "length")[:size]
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


def _checked_array(found: npt.NDArray[Any], size: int, what: str) -> npt.NDArray[np.int64]:
    if found.shape != (size,) or (size and found.dtype.kind not in "iu"):
        raise UsageError(
            f"{what} is an array of {found.dtype} of shape {found.shape}; it must hold one whole "
            f"number for each of the {size} samples"
        )
    wrong = np.flatnonzero((found < 0) | (found > LONGEST))
    if len(wrong):
        raise UsageError(
            f"{what} gives sample {wrong[0]} the length {found[wrong[0]]}; a length is a whole "
            f"number from 0 to 2**40"
        )
    return found.astype(np.int64)


def _read_lengths(samples: Any, share: range, length: Measure) -> npt.NDArray[np.int64]:
    if isinstance(length, str) and hasattr(samples, "select_columns"):
        samples = samples.select_columns([length])  # a Hugging Face data set reads no others
    found = np.zeros(len(share), np.int64)
    for start in range(0, len(share), _CHUNK):
        numbers = np.array(share[start : start + _CHUNK])
        for place, sample in enumerate(fetch(samples, numbers), start):
            found[place] = length_of(sample, share[place], length)
    return found
