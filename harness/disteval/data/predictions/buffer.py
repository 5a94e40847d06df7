"""Rows that wait to be written, and the parts that were written of them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import unwritable
from disteval.data.predictions.columns import Ids, Table, joined, same_form, table_of
from disteval.data.predictions.parts import Part, write_part
from disteval.data.predictions.settings import Predictions

PART_BYTES = 64 << 20
_SECONDS = 30.0
_SHARE = 0.05  # of the time so far, so that a long run has not too many parts


class PartBuffer:
    """Collects predictions, and writes them as a part when they are many or have waited long.

    Args:
        where: The folder and the format.
        prefix: The name of each part up to its number, which no other process gives.

    Attributes:
        parts: The parts that were written.
    """

    def __init__(self, where: Predictions, prefix: str) -> None:
        self._where, self._prefix = where, prefix
        self.parts: list[Part] = []
        self._written = 0
        self._waiting: list[Table] = []
        self._rows = self._bytes = 0
        self._begin = self._last = time.monotonic()

    def add(
        self, ids: Ids, outputs: Any, batch: Any, is_new: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Take the outputs of some samples.

        Args:
            ids: The samples' global numbers.
            outputs: Their outputs, with one row for each.
            batch: The batch, for ``record``.
            is_new: For each sample whether it is written; None stands for all of them.

        Raises:
            UsageError: The outputs can't be stored in this format, or the folder can't be written.
        """
        if self._where.record is not None:
            outputs = self._where.record(outputs, batch)
        table = table_of(ids, outputs)
        if is_new is not None and not is_new.all():
            table = table.pick(is_new)
        if not len(table.ids):
            return
        if self._waiting and not same_form(self._waiting[0], table):
            self.flush()
        self._waiting.append(table)
        self._rows += len(table.ids)
        self._bytes += table.size()
        now = time.monotonic()
        is_late = now - self._last > max(_SECONDS, _SHARE * (now - self._begin))
        if is_late or self._rows >= self._where.rows_per_part or self._bytes >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one part, or as several if it is large."""
        self._last = time.monotonic()
        if not self._waiting:
            return
        table = joined(self._waiting).in_order()
        a_row = max(1, table.size() // len(table.ids))
        most = max(1, min(self._where.rows_per_part, PART_BYTES // a_row))
        for start in range(0, len(table.ids), most):
            name = f"{self._prefix}-{self._written:06d}"
            rows = table.pick(slice(start, start + most))
            try:
                self.parts.append(write_part(self._where.path, name, rows, self._where.format))
            except OSError as error:
                raise unwritable("the folder of predictions", self._where.path, error) from error
            self._written += 1
        # Not before, so that an interrupt in the middle loses nothing: rows that are in two parts
        # are in one of them when the next run has begun.
        self.drop()

    def take(self) -> list[Part]:
        """Write what waits, and return the parts since the last call."""
        self.flush()
        parts, self.parts = self.parts, []
        return parts

    def drop(self) -> None:
        """Forget what waits."""
        self._waiting, self._rows, self._bytes = [], 0, 0
