"""A folder of predictions: how it is written, and the manifest, which is written last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from disteval.arguments import check_choice, check_count, check_flag, check_path, unwritable
from disteval.coverage import Certificate, add_certificates
from disteval.data.predictions.formats import FORMATS, check_format
from disteval.data.predictions.parts import NAME, PartFile, sealed
from disteval.data.predictions.reader import (
    BEGUN,
    MANIFEST,
    VERSION,
    PredictionReader,
    finished,
)
from disteval.errors import CoverageError, UsageError
from disteval.files import lock_folder, write_atomically

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


@contextmanager
def locked(where: Predictions) -> Iterator[None]:
    """Keep other jobs out of a folder meanwhile, and leave nothing beside a finished result.

    Raises:
        UsageError: Another job uses the folder, or it can't be written.
    """
    with _named(where.path):
        lock = lock_folder(where.path)
    try:
        yield
        there = finished(where.path)
        if there is not None and not any(where.path.glob(BEGUN)):
            with suppress(OSError):  # it does no harm
                remove_strays(where.path, [*there.parts])
    finally:
        if lock is not None:
            lock.release()


def refuse_finished(where: Predictions, stored: Sequence[PartFile]) -> PredictionReader | None:
    """Return a finished result, which is replaced only when another one is there; None without.

    Args:
        where: The folder.
        stored: What the evaluation that goes on has written; a result of these is its own.

    Raises:
        UsageError: The folder has a finished result of something else, and it may not be replaced.
    """
    result = finished(where.path)
    if result is None:
        return None
    names = {part.name for part in stored}
    is_own = bool(names) and all(part.name in names for part in result.parts)
    if not (is_own or where.overwrite):
        raise UsageError(
            f"{where.path} has finished predictions of {result.size} samples in {result.format}; "
            f"read them with load_predictions, give another folder, or overwrite=True (--overwrite)"
        )
    return result


def remove_strays(folder: Path, keep: Sequence[PartFile]) -> None:
    """Remove drafts and files of parts, except those of the parts to keep."""
    names = {part.name for part in keep}
    for path in folder.iterdir():
        found = NAME.fullmatch(path.name)
        if found and (found[1] not in names or path.name.startswith(".")):
            path.unlink(missing_ok=True)


def complete(where: Predictions, name: str, parts: Sequence[PartFile], proved: Certificate) -> None:
    """Check that parts hold what was proved, and write the manifest.

    Args:
        where: The folder and the format.
        name: The name of what was computed.
        parts: All parts.
        proved: The proof of coverage.

    Raises:
        CoverageError: The parts are not those of the samples, or can't be seen here.
        UsageError: The folder can't be written.
    """
    folder = where.path
    wrong = [problem for part in parts if (problem := part.problem(folder, thorough=False))]
    if wrong:
        raise CoverageError(
            f"{len(wrong)} of {len(parts)} parts of the predictions are not in {folder} as "
            f"this rank sees it ({wrong[0]}); give a folder on a file system that all hosts share"
        )
    counted, mixed, _ = add_certificates([part.certificate for part in parts])
    if (counted, mixed) != proved[:2]:
        rows = sum(part.rows for part in parts)
        raise CoverageError(
            f"the parts in {folder} hold predictions of {rows} samples, which are not the "
            f"{proved.counted} samples that were evaluated; give another folder, or remove this one"
        )
    in_a_row = not parts or max(part.last for part in parts) == proved.counted - 1
    parts = sorted(parts, key=lambda part: (part.first, part.name))
    content = {
        "disteval": "predictions", "version": VERSION,
        "settings": {"format": where.format, "name": name},
        "size": proved.counted, "in_a_row": in_a_row, "parts": [asdict(part) for part in parts],
    }  # fmt: skip
    with _named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / MANIFEST, lambda file: file.write(sealed(content)))
    with suppress(OSError):  # it does no harm
        remove_strays(folder, parts)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable("the folder of predictions", folder, error) from error
