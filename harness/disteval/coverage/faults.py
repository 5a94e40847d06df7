"""The samples that were missed or counted more than once, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from disteval.contract import BaseDistBackend
from disteval.coverage.counted import Counted, Ids
from disteval.coverage.proof import Certificate, prove
from disteval.errors import CoverageError

_NAMED = 5


def check_once(
    certificates: Sequence[Certificate],
    counted: Counted,
    size: int | None,
    backend: BaseDistBackend,
) -> None:
    """Check that each sample was counted once; every rank must call it.

    Args:
        certificates: Each rank's part of the proof.
        counted: The ids that this rank counted, which are gathered if the proof fails.
        size: The number of samples in the data set; None if only repeated ids are faults.
        backend: The backend that joins the ranks.

    Raises:
        CoverageError: On every rank, when a sample was missed or counted more than once.
    """
    if size is not None and prove(certificates, size):
        return
    shards = [sent.all() for sent in backend.all_gather_object(counted)]
    if faults := describe_faults(shards, size):
        raise not_once(sum(map(len, shards)), size, faults)


def fault_of(shards: Sequence[Ids], ids: int | Sequence[range]) -> CoverageError:
    """Return the error of samples that were not counted exactly once.

    Args:
        shards: The ids that each rank counted, by rank.
        ids: All ids, in runs of consecutive ones; or how many there are, from 0 up.
    """
    size = ids
    if not isinstance(ids, int):
        shards, size = [_places(each, ids) for each in shards], sum(map(len, ids))
    assert isinstance(size, int)
    faults = describe_faults(shards, size) or "the proof failed; please report this"
    return not_once(sum(map(len, shards)), size, faults)


def _places(ids: Ids, runs: Sequence[range]) -> Ids:
    """Return each id's place in the runs, or -1 if it is in none of them."""
    starts, lengths = np.array([run.start for run in runs]), np.array([len(run) for run in runs])
    run = np.searchsorted(starts, ids, side="right") - 1
    within = ids - starts[run]
    found: Ids = np.where(within < lengths[run], (np.cumsum(lengths) - lengths)[run] + within, -1)
    return found


def not_once(counted: int, size: int | None, faults: str) -> CoverageError:
    """Return the error of samples that all ranks together did not count exactly once."""
    of = "" if size is None else f" of {size}"
    return CoverageError(
        f"the samples were not counted exactly once: {counted} were counted{of}; {faults}. "
        f"Look at how samples are distributed over ranks"
    )


def describe_faults(shards: Sequence[Ids], size: int | None) -> str:
    """Say which samples are missing, repeated or not in the data set; up to five of each kind.

    Args:
        shards: The ids that each rank counted, by rank.
        size: The number of samples in the data set; None if only repeated ids are faults.

    Returns:
        The faults, separated by semicolons; nothing if each id was counted once.
    """
    distinct, times = np.unique(np.concatenate(shards), return_counts=True)
    outside = np.zeros(len(distinct), dtype=bool)
    missing, some_missing = 0, distinct[:0]
    if size is not None:
        outside = (distinct < 0) | (distinct >= size)
        missing = size - int(np.count_nonzero(~outside))
        # The first numbers are enough to name some; the size may be too large for an array.
        is_missing = np.ones(min(size, len(distinct) + _NAMED), dtype=bool)
        is_missing[distinct[(distinct >= 0) & (distinct < len(is_missing))]] = False
        some_missing = np.flatnonzero(is_missing)
    repeated = distinct[(times > 1) & ~outside]
    found = [
        _some("missing", missing, some_missing),
        _some("counted more than once", len(repeated), repeated) + _where(repeated[:1], shards),
        _some("not in the data set", int(outside.sum()), distinct[outside]),
    ]
    return "; ".join(filter(None, found))


def name_some(ids: npt.NDArray[np.int64], count: int | None = None) -> str:
    """List the first ids, and show by an ellipsis that there are more."""
    more = ", …" if (len(ids) if count is None else count) > _NAMED else ""
    return ", ".join(map(str, ids[:_NAMED])) + more


def _some(what: str, count: int, ids: Ids) -> str:
    return f"{count} {what} ({name_some(ids, count)})" if count else ""


def _where(repeated: Ids, shards: Sequence[Ids]) -> str:
    """Say how often each rank counted the first of the repeated samples."""
    if not len(repeated):
        return ""
    times = [int(np.count_nonzero(ids == repeated[0])) for ids in shards]
    ranks = np.repeat(np.arange(len(shards)), times)
    return f", of which {repeated[0]} on ranks {name_some(ranks)}"
