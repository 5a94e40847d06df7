"""The base of metrics that compute another metric, of weighted samples, groups or resamples."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.base import BaseMetric, Rows, SummableMetric
from disteval.metrics.state import Column


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
        taken = self.metric._results = Column(keeps_sums=False)
        if self.metric.uses_ids or isinstance(self.metric, Wrapper):  # whose samples have rows
            kwargs = {**kwargs, "ids": ids}
        try:
            self.metric.add(*args, **kwargs)
        finally:
            self.metric.reset()
        checked = self._ids.check(ids, len(taken), len(self._results))
        found, samples = values, len(taken)
        if checked is not None:
            found, samples = checked.ids if values is None else values, len(checked.ids)
        if found is None or len(found) != samples:
            raise UsageError(
                f"{what} have {0 if found is None else len(found)} values, but the batch has "
                f"{samples} samples; give one for each sample"
            )
        by_row = found if checked is None else np.repeat(found, checked.rows)

        def joined() -> Rows:
            rows = taken.rows(self.metric.sums_of)
            form = [("row", rows.dtype, rows.shape[1:]), ("value", by_row.dtype)]
            both = np.empty(len(rows), np.dtype(form))
            both["row"], both["value"] = rows, by_row
            return both

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
