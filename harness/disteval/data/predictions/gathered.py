"""Predictions in memory, which rank 0 gathers in messages of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.data.predictions.columns import Ids, StoredTable, joined, table_of
from disteval.errors import CoverageError, RankError, describe_error

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
            CoverageError: On every rank, if rank 0 could not put them together.
        """
        found: list[StoredTable] = []
        failure: str | None = None
        pieces = self._pieces()
        waiting = True
        while waiting:
            piece = None
            try:
                piece = next(pieces, None)
            except Exception as error:
                failure = describe_error(error)
            told = self._backend.all_gather_object((piece, failure))
            for rank, (_, other) in enumerate(told):
                if other is not None:
                    raise RankError(rank, f"could not gather its predictions: {other}")
            waiting = any(table is not None for table, _ in told)
            if self._backend.rank == 0:
                found += [table for table, _ in told if table is not None]
        if self._backend.rank == 0:
            try:
                self.result = joined(found).in_order().outputs() if found else []
            except Exception as error:
                failure = describe_error(error)
        failure = self._backend.broadcast_object(failure, src=0)
        if failure is not None:
            raise CoverageError(f"the predictions can't be put together: {failure}")

    def _pieces(self) -> Iterator[StoredTable]:
        """Yield this rank's rows in tables of about `MESSAGE_BYTES`, and keep none of them."""
        tables, self._tables = self._tables[::-1], []
        waiting: list[StoredTable] = []
        free = MESSAGE_BYTES
        while tables:
            table = tables.pop()
            size = table.size()
            most = max(1, MESSAGE_BYTES * len(table.ids) // max(1, size))
            for start in range(0, len(table.ids), most):
                piece = table.pick(slice(start, start + most))
                cost = size * len(piece.ids) // len(table.ids)
                if waiting and cost > free:
                    yield joined(waiting)
                    waiting, free = [], MESSAGE_BYTES
                waiting.append(piece)
                free -= cost
        if waiting:
            yield joined(waiting)
