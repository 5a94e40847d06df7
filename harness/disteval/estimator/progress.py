"""The display of a training: a bar for the current phase, and a line for each record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from disteval.estimator.records import line_of

_log = logging.getLogger("disteval.estimator")


class Display:
    """Shows records and, on a terminal, a progress bar, which would only clutter a log file."""

    def __init__(
        self, shown: bool, on_record: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._shown = shown
        self._on_record = on_record
        self._bar = tqdm(unit="batch", leave=False, disable=None if shown else True)
        self._done: dict[int, tuple[int, int]] = {}

    def on_progress(self, rank: int, done: int, total: int) -> None:
        """Take the number of batches of its phase that a rank has done."""
        self._done[rank] = done, total
        finished, self._bar.total = map(sum, zip(*self._done.values(), strict=True))
        self._bar.update(finished - self._bar.n)

    def on_note(self, _rank: int, record: dict[str, Any] | tuple[int, str]) -> None:
        """Take a log line and its level, or the record of a phase that has ended."""
        if isinstance(record, tuple):
            level, line = record
            if level >= logging.WARNING:
                _log.log(level, "%s", line)
            elif self._shown:
                tqdm.write(line)
            return
        if self._on_record is not None:
            self._on_record(record)
        if self._shown:
            tqdm.write(line_of(record))
        self._done.clear()
        self._bar.reset()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
