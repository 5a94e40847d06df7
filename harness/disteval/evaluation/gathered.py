"""Predictions in memory, which rank 0 gathers in messages of bounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.data.predictions.columns import Ids, StoredTable, joined, table_of
from disteval.errors import describe_error
from disteval.evaluation.agreement import Failure, gathered, on_rank_0

MESSAGE_BYTES = 16 << 20
"""About how much each rank sends in one collective."""


class GatheredPredictions:
    """Keeps this rank's predictions, and gathers all of them on rank 0 at the end.

    Args:
        backend: Joins the ranks.
        record: Returns what is kept of the outputs and the batch; see `Predictions`.

    Attributes:
        result: On rank 0 after `finish`, all predictions in the order of the data set.
    """

    def __init__(
        self, backend: BaseDistBackend, record: Callable[[Any, Any], Any] | None = None
    ) -> None:
        self.record = record
        self._tables: list[StoredTable] = []
        self._backend = backend
        self.result: Any = None

    def write(self, ids: Ids, outputs: Any, batch: Any = None) -> None:
        """Keep the outputs of a batch."""
        kept = outputs if self.record is None else self.record(outputs, batch)
        self._tables.append(table_of(ids, kept))

    def finish(self) -> None:
        """Gather all predictions; every rank must call it.

        Raises:
            RankError: On every rank, if a rank's predictions have several forms.
            UsageError: On every rank, if those of ranks do.
        """
        pieces: list[StoredTable] = []
        failure: Failure | None = None
        try:
            if self._tables:
                pieces, self._tables = _pieces(joined(self._tables)), []
        except Exception as error:  # the other ranks wait for this one
            what = f"could not gather its predictions: {describe_error(error)}"
            failure = Failure(what, error)
        found: list[StoredTable] = []
        for number in range(max(gathered(self._backend, len(pieces), failure))):
            piece = pieces[number] if number < len(pieces) else None
            sent = self._backend.all_gather_object(piece)
            if self._backend.rank == 0:
                found += [table for table in sent if table is not None]

        def put_together() -> None:
            self.result = joined(found).in_order().outputs() if found else []

        on_rank_0(self._backend, put_together, "put the predictions together")


def _pieces(table: StoredTable) -> list[StoredTable]:
    """Return the rows of a table in tables of at most `MESSAGE_BYTES`, or of one row."""
    if len(table.ids) == 1 or table.size() <= MESSAGE_BYTES:
        return [table]
    half = len(table.ids) // 2
    return _pieces(table.pick(slice(half))) + _pieces(table.pick(slice(half, None)))
