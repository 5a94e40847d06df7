"""A folder of predictions as a whole: what is in it, and the manifest, which is written last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from disteval.arguments import unwritable
from disteval.coverage import Certificate, add_certificates
from disteval.data.predictions.parts import NAME, PartFile, sealed
from disteval.data.predictions.reader import (
    BEGUN,
    MANIFEST,
    VERSION,
    PredictionReader,
    finished,
)
from disteval.data.predictions.settings import Predictions
from disteval.errors import CoverageError, UsageError
from disteval.files import lock_folder, write_atomically


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
