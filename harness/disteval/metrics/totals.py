"""The state of metrics over parts of a data set, which is added up in any order.

The sums of a summable metric are added exactly. Other metrics keep each part's state with its
place, and compute over all states in the order of the data set, as one rank would.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.default_backend import get_dist_backend
from disteval.errors import CoverageError, RankError, UsageError, describe_error
from disteval.metrics.base import BaseMetric, SummableMetric
from disteval.metrics.group import computes_alone
from disteval.metrics.state import add_sums

_SMALL = 4096
"""Sums up to this number are kept as they are."""
_SUMS, _WITH_STATES = b"+", b"."  # before packed totals


class SparseSums(NamedTuple):
    """An array of sums of which most are 0, such as the confusion matrix of many classes.

    A lease has few samples, so its sums take memory for these, and not for all pairs of classes.

    Attributes:
        shape: The shape of the array.
        places: Where the array, in one dimension, is not 0.
        values: The sums that are there.
    """

    shape: tuple[int, ...]
    places: npt.NDArray[np.intp]
    values: npt.NDArray[Any]


class Total(NamedTuple):
    """The state of one metric over some parts of the data set.

    Attributes:
        rows: The number of rows whose sums are added up; None if states are kept one by one.
        sums: These sums, an array or `SparseSums`.
        states: The place of each part, and the metric's state over it.
    """

    rows: int | None
    sums: Any
    states: list[tuple[int, Any]]


Totals = dict[str, Total]
"""The total of each metric, by the metric's name."""


def check_totals(metrics: Mapping[str, BaseMetric]) -> None:
    """Raise UsageError if a metric's class replaces ``compute``, so that states can't be added."""
    for name, metric in metrics.items():
        if computes_alone(metric):
            raise UsageError(
                f"the metric {name!r} can't be evaluated in parts: {type(metric).__name__} has a "
                f"compute of its own, which gathers the entries of all ranks; define "
                f"compute_metric instead, which gets them, or sums_of and from_sums"
            )


def take_totals(metrics: Mapping[str, BaseMetric], place: int) -> Totals:
    """Return the metrics' state over one part of the data set, and reset the metrics.

    Args:
        metrics: The metrics, by name.
        place: A number that is greater for a later part.
    """
    found = {}
    for name, metric in metrics.items():
        state = metric._state()
        if isinstance(metric, SummableMetric):
            found[name] = Total(state[0], _sparse(state[1]), [])
        else:
            found[name] = Total(None, None, [(place, state)])
        metric.reset_to_sums()
    return found


def add_totals(one: Totals, other: Totals) -> Totals:
    """Add the totals of different parts; the sum is the same in any order. ``one`` is used up."""
    found = {}
    for name, (rows, sums, states) in one.items():
        more, more_sums, more_states = other[name]
        states.extend(more_states)
        added = None if rows is None or more is None else rows + more
        found[name] = Total(added, _add(sums, more_sums), states)
    return found


def compute_totals(metrics: Mapping[str, BaseMetric], totals: Totals) -> dict[str, Any]:
    """Compute metrics over all parts in this process, as one rank that had added all samples would.

    Args:
        metrics: The metrics, by name.
        totals: The totals of all parts.

    Raises:
        UsageError: There are no samples, or a metric refuses them.
        RankError: A metric could not compute.
        CoverageError: Samples with equal ids have different entries.
    """
    found = {}
    for name, metric in metrics.items():
        rows, sums, states = totals[name]
        in_order = [state for _, state in sorted(states, key=lambda placed: placed[0])]
        backend, metric._backend = metric._backend, get_dist_backend("non_dist")
        try:
            found[name] = metric._merged(in_order if rows is None else [(rows, _dense(sums))])
        except (CoverageError, UsageError):
            raise
        except Exception as error:
            what = f"could not compute {type(metric).__name__}: {describe_error(error)}"
            raise RankError(0, what) from error
        finally:
            metric._backend = backend
    return found


def pack_totals(totals: Totals) -> bytes:
    """Return totals as bytes."""
    has_states = any(total.states for total in totals.values())
    plain = {name: tuple(total) for name, total in totals.items()}
    return (_WITH_STATES if has_states else _SUMS) + pickle.dumps(plain, protocol=5)


def unpack_totals(data: bytes) -> Totals:
    """Return what was given to `pack_totals`."""
    found = pickle.loads(memoryview(data)[1:])
    return {name: Total(*total) for name, total in found.items()}


def fold_totals(parts: Iterable[bytes]) -> bytes | None:
    """Add up packed totals; None if there are states, which take no less."""
    folded: Totals = {}
    for data in parts:
        if not data.startswith(_SUMS):
            return None
        folded = add_totals(folded, unpack_totals(data)) if folded else unpack_totals(data)
    return pack_totals({n: each._replace(sums=_sparse(each.sums)) for n, each in folded.items()})


def _sparse(sums: Any) -> Any:
    """Return sums without those that are 0, if most of many are."""
    if not isinstance(sums, np.ndarray) or sums.size <= _SMALL:
        return sums
    places = np.flatnonzero(sums)
    few = len(places) <= sums.size // 4
    return SparseSums(sums.shape, places, sums.ravel()[places]) if few else sums


def _dense(sums: Any) -> Any:
    return (
        _add(np.zeros(sums.shape, sums.values.dtype), sums)
        if isinstance(sums, SparseSums)
        else sums
    )


def _add(one: Any, other: Any) -> Any:
    """Add the sums of two parts; the array that a `SparseSums` makes takes those that follow."""
    if isinstance(other, SparseSums) and getattr(one, "dtype", None) == other.values.dtype:
        one.flat[other.places] += other.values  # in C's order, in whichever order the array lies
        return one
    return add_sums(_dense(one), _dense(other))
