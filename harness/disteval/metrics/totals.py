"""The states of metrics over parts of a data set, which are added up in any order.

The sums of a summable metric are added exactly. Other metrics keep each part's state with its
place, and compute over all states in the order of the data set, as one rank would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.contract import BaseDistBackend
from disteval.default_backend import get_dist_backend
from disteval.errors import CoverageError, RankError, UsageError, describe_error
from disteval.metrics.arrays import Array
from disteval.metrics.base import BaseMetric, SummableMetric
from disteval.metrics.state import add_sums
from disteval.plain import dumps, packed, unpacked

_SMALL = 4096
"""Sums up to this number travel as they are."""
_SUMS, _WITH_STATES = b"+", b"."  # the first byte, unless they are pickled

Total = tuple[int, Any, list[tuple[int, Any]]]
"""The rows of a summable metric and their sums; the place of each part and its state of others."""

States = Mapping[str, Total] | bytes
"""The total of each metric by name; as bytes where they are sent or written."""


class SparseSums(NamedTuple):
    """An array of sums of which most are 0, such as the confusion matrix of many classes.

    A lease has few samples, so its sums take memory for these, and not for all pairs of classes.

    Attributes:
        shape: The shape of the array.
        places: Where the array, in one dimension and C's order, is not 0.
        values: The sums that are there.
    """

    shape: tuple[int, ...]
    places: npt.NDArray[np.intp]
    values: Array


def begin_totals(metrics: Mapping[str, BaseMetric], backend: BaseDistBackend) -> None:
    """Have metrics compute over a backend, and keep only sums if they can, see `check_own`.

    Raises:
        UsageError: A metric's class replaces ``compute``, so that states can't be added.
    """
    for name, metric in metrics.items():
        if type(metric).compute is not BaseMetric.compute:
            raise UsageError(
                f"the metric {name!r} can't be evaluated in parts: {type(metric).__name__} has a "
                f"compute of its own, which gathers the entries of all ranks; define "
                f"compute_metric instead, which gets them, or sums_of and from_sums"
            )
    for metric in metrics.values():
        metric._backend = backend
        metric._begun_by |= {get_ident()}
        metric.reset()


def end_totals(metrics: Mapping[str, BaseMetric]) -> None:
    """Remove what metrics have added, and let other threads evaluate with them."""
    for metric in metrics.values():
        metric._begun_by = frozenset()
        metric.reset()


def check_own(metrics: Mapping[str, BaseMetric]) -> None:
    """Raise UsageError if another thread has begun with a metric as well.

    Then ranks that are threads share the metric, and would add to it and reset it at once.
    """
    for name, metric in metrics.items():
        if metric._begun_by != {get_ident()}:
            raise UsageError(
                f"the metric {name!r} is one object that several threads evaluate with; make the "
                f"metrics on each rank, in the function that calls evaluate"
            )


def check_kept(metrics: Mapping[str, BaseMetric]) -> None:
    """Raise UsageError, with the name of a metric, if a ledger can't keep what it has added."""
    for name, metric in metrics.items():
        try:
            dumps(metric._state())
        except TypeError as error:
            raise UsageError(
                f"the metric {name!r} keeps {error}, and a ledger, as beside predictions, holds "
                f"numbers, text, bytes, NumPy's arrays, torch's tensors of the CPU, and tuples, "
                f"lists, sets, dicts, named tuples and data classes of them, since reading it must "
                f"run no code; give _extend such entries, or leave ledger and predictions out"
            ) from None


def take_totals(metrics: Mapping[str, BaseMetric], place: int) -> dict[str, Total]:
    """Return the metrics' states over one part of the data set, and reset the metrics.

    Args:
        metrics: The metrics, by name.
        place: A number that is greater for a later part.
    """
    totals: dict[str, Total] = {}
    for name, metric in metrics.items():
        state = metric._state()
        is_sum = isinstance(metric, SummableMetric)
        totals[name] = (*state, []) if is_sum else (0, None, [(place, state)])
        metric.reset()
    return totals


def pack_totals(states: States) -> bytes:
    """Return states as bytes."""
    if isinstance(states, bytes):
        return states
    small = {}
    for name, (rows, sums, placed) in states.items():
        if isinstance(sums, np.ndarray) and sums.size > _SMALL:
            places = np.flatnonzero(sums)
            if len(places) <= sums.size // 4:
                sums = SparseSums(sums.shape, places, sums.ravel()[places])
        small[name] = rows, sums, placed
    return packed(small, _SUMS if _are_sums(states) else _WITH_STATES)


def fold_totals(parts: Sequence[States]) -> States | None:
    """Return the sums of parts as one; None if there are states, which would take no less."""
    if not all(map(_are_sums, parts)):
        return None
    found = _add_up(parts)
    return pack_totals(found) if isinstance(parts[0], bytes) else found


def compute_totals(metrics: Mapping[str, BaseMetric], parts: Sequence[States]) -> dict[str, Any]:
    """Compute metrics over all parts in this process, as one rank that had added all samples would.

    Args:
        metrics: The metrics, by name.
        parts: The states of each part.

    Raises:
        UsageError: There are no samples, or a metric refuses them.
        RankError: A metric could not compute.
        CoverageError: Samples with equal ids have different entries.
    """
    found, totals = {}, _add_up(parts)
    for name, metric in metrics.items():
        rows, sums, states = totals.get(name, (0, None, []))
        in_order = [state for _, state in sorted(states, key=lambda placed: placed[0])]
        is_sum = isinstance(metric, SummableMetric)
        backend, metric._backend = metric._backend, get_dist_backend("non_dist")
        try:
            found[name] = metric._merged([(rows, sums)] if is_sum else in_order)
        except (CoverageError, UsageError):
            raise
        except Exception as error:
            what = f"could not compute {type(metric).__name__}: {describe_error(error)}"
            raise RankError(0, what) from error
        finally:
            metric._backend = backend
    return found


def _are_sums(states: States) -> bool:
    if isinstance(states, bytes):
        return states.startswith(_SUMS)
    return not any(placed for _, _, placed in states.values())


def _add_up(parts: Iterable[States]) -> dict[str, Total]:
    totals: dict[str, Total] = {}
    own = set[str]()  # whose sums are an array that no part holds
    for part in parts:
        found = unpacked(part) if isinstance(part, bytes) else part
        for name, (rows, sums, placed) in found.items():
            others, total, every = totals.get(name, (0, None, []))
            if isinstance(sums, SparseSums):  # added in place, which takes less time
                if name not in own or total.dtype != sums.values.dtype:
                    total = add_sums(total, np.zeros(sums.shape, sums.values.dtype))
                    own.add(name)
                total.flat[sums.places] += sums.values
            else:
                total = add_sums(total, sums)
            every.extend(placed)
            totals[name] = rows + others, total, every
    return totals
