"""Where and how predictions are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from disteval.arguments import check_choice, check_count, check_flag, check_path
from disteval.data.predictions.formats import FORMATS, check_format
from disteval.errors import UsageError

FormatName = Literal["jsonl", "npy", "parquet"]


@dataclass(frozen=True)
class Predictions:
    """A folder to which predictions are written while they are computed.

    Args:
        folder: The folder, which is made if it is missing. All ranks must see the same one.
        format: ``jsonl``: one JSON object a line; ``parquet``, which needs pyarrow; or ``npy``:
            NumPy's files, one for each field.
        record: A function of the outputs and the batch that returns what is written instead of the
            outputs: an array, a list, or a tuple or dict of these, with one row for each sample.
        overwrite: Whether a finished result, or an interrupted run with other settings, is
            replaced. The old result stays until the new one is finished.
        rows_per_part: The number of samples after which a rank begins a new part. A part also ends
            at 64 MiB, and at the latest after 30 seconds or a twentieth of the time so far. A rank
            that is killed loses the part that it is filling.

    Raises:
        UsageError: A value is out of range.
        LibraryMissingError: The format needs a package that is not installed.
    """

    folder: str | os.PathLike[str]
    format: FormatName = "jsonl"
    record: Callable[[Any, Any], Any] | None = None
    overwrite: bool = False
    rows_per_part: int = 65536

    def __post_init__(self) -> None:
        check_path("folder", self.folder)
        check_format(check_choice("format", self.format, FORMATS))
        if self.record is not None and not callable(self.record):
            raise UsageError(f"record must be a function, not {self.record!r}")
        check_flag("overwrite", self.overwrite)
        check_count("rows_per_part", self.rows_per_part)

    @property
    def path(self) -> Path:
        """The folder's path."""
        return Path(self.folder)
