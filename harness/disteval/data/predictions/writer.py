"""Predictions that wait to be written, and the parts that were written of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from disteval.arguments import unwritable
from disteval.data.predictions.columns import Ids, StoredTable, joined, table_of
from disteval.data.predictions.folder import Predictions
from disteval.data.predictions.parts import PartFile, write_part
from disteval.data.predictions.reader import finished

PART_BYTES = 64 << 20
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 30.0
_SHARE = 0.05  # of the time so far, so that a long run has not too many parts


def is_due(begin: float, last: float) -> bool:
    """Return whether what waits since the last part is to be written.

    The first part is due after a second, each after that when the time has doubled, and later ones
    after 30 seconds or a twentieth of the time so far.

    Args:
        begin: When the run began, as of `time.monotonic`.
        last: When the last part was written, or the run began.
    """
    now = time.monotonic()
    least = min(_MOST_SECONDS, max(_FIRST_SECONDS, last - begin))
    return now - last > max(least, _SHARE * (now - begin))


class PartWriter:
    """Writes predictions as parts, when they are many or have waited long.

    The names of parts are this process's own, since a rank that was lost may still write.

    Args:
        where: The folder and the format.

    Attributes:
        parts: The parts that were written since `take` was called.
    """

    def __init__(self, where: Predictions) -> None:
        self._where, self._prefix = where, f"part-{secrets.token_hex(8)}"
        self.parts: list[PartFile] = []
        self._written: list[PartFile] = []
        self._waiting: list[StoredTable] = []
        self._rows = self._bytes = 0
        self._begin = self._last = time.monotonic()

    def write(self, ids: Ids, outputs: Any, batch: Any) -> None:
        """Take the outputs of some samples.

        Args:
            ids: The samples' global numbers.
            outputs: Their outputs, with one row for each.
            batch: The batch, for ``record``.

        Raises:
            UsageError: The outputs can't be stored in this format, or the folder can't be written.
        """
        if self._where.record is not None:
            outputs = self._where.record(outputs, batch)
        table = table_of(ids, outputs)
        if self._waiting and self._waiting[0].layout != table.layout:
            self._flush()
        self._waiting.append(table)
        self._rows += len(table.ids)
        self._bytes += table.size()
        is_large = self._rows >= self._where.rows_per_part or self._bytes >= PART_BYTES
        if is_large or is_due(self._begin, self._last):
            self._flush()

    def take(self) -> tuple[PartFile, ...]:
        """Write what waits, and return the parts since the last call."""
        self._flush()
        parts, self.parts = self.parts, []
        return tuple(parts)

    def drop(self) -> None:
        """Remove what was written since the last call of `take`."""
        self._forget()
        parts, self.parts = self.parts, []
        self._remove(parts)

    def clean(self) -> None:
        """Remove what this process wrote and the result in the folder does not name."""
        there = finished(self._where.path) if self._written else None
        if there is not None:
            kept = {part.name for part in there.parts}
            self._remove([part for part in self._written if part.name not in kept])

    def _flush(self) -> None:
        """Write what waits as one part, or as several if it is large."""
        self._last = time.monotonic()
        if not self._waiting:
            return
        table = joined(self._waiting).in_order()
        a_row = max(1, table.size() // len(table.ids))
        most = max(1, min(self._where.rows_per_part, PART_BYTES // a_row))
        parts = []
        for start in range(0, len(table.ids), most):
            name = f"{self._prefix}-{len(self._written):06d}"
            rows = table.pick(slice(start, start + most))
            try:
                self._where.path.mkdir(parents=True, exist_ok=True)
                parts.append(write_part(self._where.path, name, rows, self._where.format))
            except OSError as error:
                raise unwritable("the folder of predictions", self._where.path, error) from error
            self._written.append(parts[-1])
        # Not before all of them are there, so that an interrupt in the middle loses nothing.
        self.parts += parts
        self._forget()

    def _forget(self) -> None:
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _remove(self, parts: Sequence[PartFile]) -> None:
        for part in parts:
            for suffix in part.files:
                with suppress(OSError):  # it does no harm
                    (self._where.path / (part.name + suffix)).unlink()
