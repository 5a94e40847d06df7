"""The display of a training: a bar for the current phase, and a line for each record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

_log = logging.getLogger("disteval.estimator")
_PLAIN = {"epoch", "iter", "mode", "num_samples", "seconds", "correct", "evaluated"}


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


def line_of(record: dict[str, Any]) -> str:
    """Return a record as one line of text."""
    parts = [f"epoch {record['epoch']:<3}", f"{record['mode']:<5}"]
    for name, value in record.items():
        if name == "samples_per_second":
            parts.append(f"{value:.0f} samples/s")
        elif name == "accuracy" and "correct" in record:
            parts.append(f"accuracy {value:.4f} ({record['correct']} of {record['evaluated']})")
        elif name not in _PLAIN and isinstance(value, (int, float)):
            parts.append(f"{name} {value:.4g}")
    return "  ".join([*parts, f"{record['seconds']:.1f} s"])
