"""The base of metrics that compute another metric, of weighted samples, groups or resamples."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.base import BaseMetric, Rows, SummableMetric
from disteval.metrics.state import Column, SampleRows


class Wrapper(SummableMetric):
    """The base of metrics whose rows are those of another metric, each with one value more.

    Args:
        metric: The metric to compute, which must be a `SummableMetric`, and no wrapper that must be
            outside. It is copied; the original does not change.
    """

    _order: ClassVar[int]

    def __init__(self, metric: SummableMetric) -> None:
        name = type(self).__name__
        if not isinstance(metric, SummableMetric):
            raise UsageError(
                f"{name} takes a metric that follows from sums, such as "
                f"disteval.metrics.Accuracy(), not {metric!r}"
            )
        if isinstance(metric, Wrapper) and metric._order >= self._order:
            raise UsageError(
                f"{name} can't be computed of {type(metric).__name__}; "
                f"the order is Grouped(Bootstrap(Weighted(metric))), each of which may be left out"
            )
        super().__init__(metric.dataset_meta, metric.dist_collect_mode, metric._backend)
        self.metric = copy(metric)
        self.metric.reset()
        self.uses_ids = metric.uses_ids

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Any) -> Column:
        """Return the rows that the wrapped metric makes of a batch."""
        taken = self.metric._results = Column(keeps_sums=False)
        if self.metric.uses_ids or isinstance(self.metric, Wrapper):  # whose samples have rows
            kwargs = {**kwargs, "ids": ids}
        try:
            self.metric.add(*args, **kwargs)
        finally:
            self.metric.reset()
        return taken

    def _by_row(self, what: str, values: Rows, taken: Column, ids: Any) -> Rows:
        """Return one value for each row, from one for each sample."""
        checked = self._checked(taken, ids)
        samples = len(taken) if checked is None else len(checked.ids)
        if len(values) != samples:
            raise UsageError(
                f"{what} have {len(values)} values, but the batch has {samples} samples; "
                f"give one for each sample"
            )
        return values if checked is None else np.repeat(values, checked.rows)

    def _checked(self, taken: Column, ids: Any) -> SampleRows | None:
        """Return the ids of a batch, see `Ids.check`."""
        return self._ids.check(ids, len(taken), len(self._results))

    def _append_with(self, taken: Column, values: Rows, ids: Any) -> None:
        """Add each row with its value, as a structured array with the fields row and value."""

        def joined() -> Rows:
            rows = taken.rows(self.metric.sums_of)
            found = np.empty(
                len(rows), [("row", rows.dtype, rows.shape[1:]), ("value", values.dtype)]
            )
            found["row"], found["value"] = rows, values
            return found

        if taken.pending:
            self._append_later(len(taken), joined, ids)
        else:
            self._append(joined(), ids)


def layers(metric: BaseMetric) -> Iterator[BaseMetric]:
    """Yield a metric, and from outside to inside those that it wraps."""
    yield metric
    while isinstance(metric, Wrapper):
        metric = metric.metric
        yield metric


class RowSums(NamedTuple):
    """The sums of single rows, without those that are 0 for every row.

    Attributes:
        shape: The shape of the sums.
        places: Which of the flattened sums are kept, shape (U,).
        values: The sums of D distinct rows, shape (D, U): int64 or Python integers.
        of_row: Which of the D rows each row is, shape (N,).
    """

    shape: tuple[int, ...]
    places: npt.NDArray[np.int64]
    values: npt.NDArray[Any]
    of_row: npt.NDArray[np.int64]


def row_sums(metric: SummableMetric, rows: Rows) -> RowSums:
    """Sum each of N rows by itself, 1 or more; rows of equal bytes are summed once."""
    first, of_row = _distinct(rows)
    found = [metric.sums_of(rows[at : at + 1]) for at in first]
    places = np.unique(np.concatenate([np.flatnonzero(sums) for sums in found]))
    values = np.array([sums.reshape(-1)[places] for sums in found])
    return RowSums(found[0].shape, places, values, of_row)


def _distinct(rows: Rows) -> tuple[Any, Any]:
    if rows.dtype.hasobject or not rows.size:
        return np.arange(len(rows)), np.arange(len(rows))
    each = np.ascontiguousarray(rows).reshape(len(rows), -1)
    texts = each.view(np.dtype((np.void, each.shape[1] * each.itemsize))).reshape(-1)
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    return first, of_row
