"""The base of metrics that compute another metric, of weighted samples, groups or resamples."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, NamedTuple

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Numbers
from disteval.metrics.base import Rows, SummableMetric


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

    def _add_with(
        self, what: str, values: Rows | None, ids: Any, args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Add the rows that the wrapped metric makes of a batch, each with its sample's value.

        They become a structured array with the fields row and value. Values are named by ``what``
        in messages, and have shape (N,); None stands for the samples' ids.
        """
        if self.metric.uses_ids or isinstance(self.metric, Wrapper):  # whose samples have rows
            kwargs = {**kwargs, "ids": ids}
        length, bring, is_late = self.metric._rows_of_batch(*args, **kwargs)
        checked = self._ids.check(ids, length, self._ids.rows)
        if values is None and checked is not None:
            values = checked.ids
        found = 0 if values is None else len(values)
        samples = length if checked is None else len(checked.ids)
        if values is None or found != samples:
            raise UsageError(
                f"{what} have {found} values, but the batch has {samples} samples; give one for "
                f"each sample"
            )
        by_row = values if checked is None else np.repeat(values, checked.rows)

        def joined() -> Rows:
            rows = bring()
            form = [("row", rows.dtype, rows.shape[1:]), ("value", by_row.dtype)]
            both = np.empty(len(rows), np.dtype(form))
            both["row"], both["value"] = rows, by_row
            return both

        if is_late:
            self._append(joined, ids, length=length)
        else:
            self._append(joined(), ids)


class RowSums(NamedTuple):
    """The sums of single rows, without those that are 0 for every row.

    Attributes:
        places: Which of the flattened sums are kept, shape (U,).
        values: The sums of D distinct rows, shape (D, U): int64 or Python integers.
        of_row: Which of the D rows each row is, shape (N,).
    """

    places: Numbers
    values: Array
    of_row: Numbers


def row_sums(metric: SummableMetric, rows: Rows) -> RowSums:
    """Sum each of N rows by itself, 1 or more; rows of equal bytes are summed once."""
    first, of_row = _distinct(rows)
    found = [metric.sums_of(rows[at : at + 1]) for at in first]
    places = np.unique(np.concatenate([np.flatnonzero(sums) for sums in found]))
    values = np.array([sums.reshape(-1)[places] for sums in found])
    return RowSums(places, values, of_row)


def _distinct(rows: Rows) -> tuple[Any, Any]:
    if rows.dtype.hasobject or not rows.size:
        return np.arange(len(rows)), np.arange(len(rows))
    each = np.ascontiguousarray(rows).reshape(len(rows), -1)
    texts = each.view(np.dtype((np.void, each.shape[1] * each.itemsize))).reshape(-1)
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    return first, of_row
