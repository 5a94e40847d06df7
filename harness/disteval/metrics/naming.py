"""How errors name a sample: by its number in the data set, or else by its row in the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np

from disteval.errors import UsageError

_batch: ContextVar[tuple[str, Any]] = ContextVar("batch", default=("the metric", None))
"""The name of the metric that gets a batch, and the ids of the batch."""


@contextmanager
def naming(metric: str | None = None, ids: Any = None) -> Iterator[None]:
    """Name a metric, and samples by ids, in errors of a batch that is added; None changes none."""
    outer = _batch.get()
    token = _batch.set((metric or outer[0], outer[1] if ids is None else ids))
    try:
        yield
    finally:
        _batch.reset(token)


def sample(row: int) -> str:
    """Name the sample that has a row of the batch."""
    _, ids = _batch.get()
    with suppress(Exception):  # ids of a wrong kind or length are an error of their own
        if hasattr(ids, "rows"):  # SampleRows
            ids = np.repeat(ids.ids, ids.rows)
        return f"sample {int(ids[row])}"
    return f"row {row} of the batch"


def refuse(must: str, values: Any, wrong: Any, remedy: str = "", rows: Any = None) -> None:
    """Raise UsageError if a value is wrong; it names the first one and its sample.

    Args:
        must: What the values must be.
        values: An array of shape (N, …).
        wrong: Which of them are wrong, in their shape.
        remedy: What to do.
        rows: The row of the batch that each of the N belongs to; None if each has one of its own.
    """
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        row = at[0] if rows is None else rows[at[0]]
        raise UsageError(f"{must}, but {sample(row)} has {values[at]}{remedy}")


def refuse_nan(what: str, values: Any, counted: Any = True) -> None:
    """Raise UsageError if values of shape (N, …) that are counted hold NaN, see `refuse_rows`."""
    missing = np.isnan(values) & counted
    if missing.any():
        refuse_rows(what, missing.reshape(len(missing), -1).any(axis=1))


def refuse_rows(what: str, missing: Any) -> None:
    """Raise UsageError if rows hold NaN, shape (N,); it says how many do, and names the first."""
    if missing.any():
        raise UsageError(
            f"{_batch.get()[0]} got NaN in {what}, in {np.count_nonzero(missing)} of "
            f"{len(missing)} rows of a batch, the first of which is "
            f"{sample(int(missing.argmax()))}; repair what computes them, or leave those samples "
            f"out"
        )
