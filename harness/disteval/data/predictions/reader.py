"""Reading of finished predictions, in the order of the data set, a block at a time."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disteval.arguments import check_path, unwritable
from disteval.data.predictions.columns import StoredTable, joined
from disteval.data.predictions.formats import FORMATS, block_rows, check_format
from disteval.data.predictions.parts import PartFile, unsealed
from disteval.errors import CoverageError, DataError, UsageError
from disteval.files import write_atomically

MANIFEST = ".manifest.json"  # hidden from pyarrow, pandas and datasets, which read every other file
BEGUN = ".ledger-*.log"
"""The files of an evaluation that was begun and has not finished."""

VERSION = 2
_LONGEST = 1 << 30


class PredictionReader:
    """The predictions in a folder, in the order of the data set.

    Iterating yields one prediction for each sample, or a dict or tuple of its fields. Arrays are
    NumPy's, and bfloat16 is float32. Memory holds a block of about a MiB of each part whose ids
    overlap, not all predictions.

    Attributes:
        folder: The folder.
        format: The format of the files.
        size: The number of samples.
        name: The name of the task.
        parts: The parts.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.format: str = manifest["settings"]["format"]
        self.name: str = manifest["settings"].get("name", "")
        self.size: int = manifest["size"]
        self.parts = tuple(PartFile.from_json(part) for part in manifest["parts"])
        self._in_a_row: bool = manifest["in_a_row"]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        return (row for _, row in self.items())

    def __repr__(self) -> str:
        return f"PredictionReader({str(self.folder)!r}, format={self.format!r}, size={self.size})"

    def items(self) -> Iterator[tuple[int, Any]]:
        """Yield each sample's global number and its prediction.

        Raises:
            CoverageError: A sample is missing or there twice.
            DataError: A part is damaged.
        """
        seen, last = 0, -1
        for number, row in self._merged():
            if number <= last or (self._in_a_row and number != last + 1):
                found = "is there twice" if number == last else f"follows sample {last}"
                raise CoverageError(f"sample {number} {found} in {self.folder}; {_REMEDY}")
            seen, last = seen + 1, number
            yield number, row
        if seen != self.size:
            raise CoverageError(
                f"{self.folder} has predictions of {seen} samples, and its manifest promises "
                f"{self.size}; {_REMEDY}"
            )

    def all(self) -> Any:
        """Return all predictions at once: an array or a list, or a tuple or dict of these."""
        table = self._whole()
        return [] if table is None else table.outputs()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write all predictions to one file of their format, in the order of the data set.

        The samples' global numbers are the column ``sample_id``. All predictions are held in
        memory meanwhile. The file appears when it is whole, and replaces one that is there.

        Raises:
            UsageError: The format is ``npy``, which has a file for each field; or the file can't be
                written.
            CoverageError: A sample is missing or there twice.
            DataError: A part is damaged.
        """
        if self.format == "npy":
            raise UsageError(
                f"the predictions in {self.folder} are .npy files, one for each field, which can't "
                f"be one file; write them with format='parquet' or format='jsonl'"
            )
        target = check_path("path", path)
        table = self._whole()
        content = b""
        if table is not None:
            if len(table.ids) != self.size or not (table.ids[:-1] < table.ids[1:]).all():
                raise CoverageError(
                    f"{self.folder} has {len(table.ids)} predictions of {len(set(table.ids))} "
                    f"samples, and its manifest promises {self.size}; {_REMEDY}"
                )
            (content,) = FORMATS[self.format].encode(table, block_rows(table))[0].values()
        try:
            write_atomically(target, lambda file: file.write(content))
        except OSError as error:
            raise unwritable("path", target, error) from error

    def _merged(self) -> Iterator[tuple[int, Any]]:
        """Yield ids and rows of all parts in the order of the ids."""
        # A part is opened when its lowest id is the next one.
        heap: list[tuple[int, int, Any, Any]] = [
            (part.first, number, None, None) for number, part in enumerate(self.parts)
        ]
        heapq.heapify(heap)
        while heap:
            number, turn, row, rows = heap[0]
            if rows is None:
                rows = self._rows(self.parts[turn])
            else:
                yield number, row
            following = next(rows, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following[0], turn, following[1], rows))

    def _rows(self, part: PartFile) -> Iterator[tuple[int, Any]]:
        for number in range(part.blocks):
            table = self._block(part, number)
            yield from zip(table.ids.tolist(), table.rows(), strict=True)

    def _whole(self) -> StoredTable | None:
        """Return the rows of all parts in the order of their ids; None if there are none."""
        tables = [self._block(part, at) for part in self.parts for at in range(part.blocks)]
        return joined(tables).in_order() if tables else None

    def _block(self, part: PartFile, number: int) -> StoredTable:
        try:
            return FORMATS[self.format].decode(self.folder / part.name, part, number)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise DataError(
                f"{self.folder}/{part.name} can't be read ({error}); {_REMEDY}"
            ) from error


_REMEDY = "copy the folder again, or compute its predictions anew in another folder"


def load_predictions(folder: str | os.PathLike[str], *, verify: bool = True) -> PredictionReader:
    """Return the finished predictions of a folder.

    Args:
        folder: The folder that `predict_all` or ``evaluate(predictions=…)`` wrote.
        verify: Whether every byte is read and compared with the digests in the manifest. Sizes
            are compared in any case.

    Raises:
        UsageError: ``folder`` is no path.
        DataError: The folder has no finished predictions, or a part is missing or damaged.
        LibraryMissingError: The files are Parquet, and pyarrow is not installed.
    """
    folder = check_path("folder", folder)
    reader = finished(folder)
    if reader is None:
        begun = any(folder.glob(BEGUN))
        found = "was begun and not finished" if begun else "has no predictions"
        raise DataError(
            f"{folder} {found}, for there is no {MANIFEST}; call predict_all or evaluate with this "
            f"folder, which {'goes on where it stopped' if begun else 'writes them'}"
        )
    check_format(reader.format)
    for part in reader.parts:
        if (problem := part.problem(folder, thorough=verify)) is not None:
            raise DataError(f"{folder} is damaged: {problem}; {_REMEDY}")
    return reader


def finished(folder: Path) -> PredictionReader | None:
    """Return the finished predictions of a folder, whose parts are not examined; None without.

    Raises:
        DataError: The manifest is damaged, or of another version.
    """
    try:
        manifest = unsealed(folder / MANIFEST, _LONGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}/{MANIFEST} can't be read ({error}); {_REMEDY}") from error
    if manifest.get("disteval") != "predictions" or manifest.get("version") != VERSION:
        raise DataError(
            f"{folder}/{MANIFEST} is no manifest of predictions of version {VERSION}; give the "
            f"folder that predict_all wrote"
        )
    try:
        return PredictionReader(folder, manifest)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{folder}/{MANIFEST} can't be read ({error!r}); {_REMEDY}") from error
