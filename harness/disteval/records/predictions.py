"""The folder of predictions that `disteval` itself writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from disteval.data.predictions import load_predictions
from disteval.errors import UsageError
from disteval.records.table import Choice, Records, held, text_of


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read finished folders; the score is a field of the outputs, if the caller gives one.

    Raises:
        CoverageError: A sample is missing or there twice.
        DataError: A folder is damaged, or its predictions are not finished.
        UsageError: The outputs have no such field, or it is no number.
    """
    rows, size, name = [], 0, ""
    for number, folder in enumerate(files):
        found = load_predictions(folder)
        size, name = size + len(found), found.name or name
        for line, (an_id, output) in enumerate(found.items(), 1):
            score = None
            if choice.score is not None:
                score = _score(folder, an_id, output, choice.score)
            rows.append((str(an_id), score, text_of(output), number, line))
    schema = {"id": pl.String, "score": pl.Float64, "answer": pl.String, "file": pl.UInt32,
              "line": pl.UInt32}  # fmt: skip
    return Records(
        frame=held(pl.LazyFrame(rows, schema, orient="row"), choice).collect(),
        harness="predictions", stated=size, files=tuple(map(str, files)), task=name,
        metric=choice.score or "",
    )  # fmt: skip


def _score(folder: Path, an_id: int, output: Any, field: str) -> float | None:
    value = output.get(field) if isinstance(output, dict) else output
    if value is not None and np.ndim(value) == 0 and not isinstance(value, (str, bytes, dict)):
        return float(value)
    if value is None and isinstance(output, dict) and field in output:
        return None
    raise UsageError(
        f"{folder}: the output of sample {an_id} has no number under {field!r}; give the field of "
        f"a number by --score, or none if only the samples are to be verified"
    )
