"""The manifest of finished predictions, which is written last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from disteval.coverage import Certificate, add_certificates
from disteval.data.predictions.parts import NOTE, Part, sealed
from disteval.data.predictions.reader import MANIFEST, UNFINISHED, VERSION
from disteval.data.predictions.run import remove_strays
from disteval.errors import CoverageError
from disteval.files import write_atomically


def complete(
    folder: Path,
    settings: Mapping[str, Any],
    parts: Sequence[Part],
    size: int,
    certificates: Sequence[Certificate],
) -> None:
    """Check that parts hold what was proved, write the manifest, and remove what is left over.

    Args:
        folder: The folder.
        settings: The settings of the predictions.
        parts: All parts.
        size: The number of samples.
        certificates: The proof of coverage.

    Raises:
        CoverageError: The parts are not those of the samples, or can't be seen here.
    """
    wrong = [problem for part in parts if (problem := part.problem(folder, thorough=False))]
    if wrong:
        raise CoverageError(
            f"{len(wrong)} of {len(parts)} parts of the predictions are not in {folder} as "
            f"this rank sees it ({wrong[0]}); give a folder on a file system that all hosts share"
        )
    proved = add_certificates(certificates)
    if add_certificates([part.certificate for part in parts]).numbers != proved.numbers:
        rows = sum(part.rows for part in parts)
        raise CoverageError(
            f"the parts in {folder} hold predictions of {rows} samples, which are not the "
            f"{proved.counted} samples that were evaluated; did the samples change since the "
            f"run was interrupted? Give another folder, or remove this one"
        )
    # The record of what was evaluated is for a run that goes on.
    settings = {name: settings[name] for name in ("format", "name") if name in settings}
    in_a_row = not parts or max(part.last for part in parts) == size - 1
    parts = sorted(parts, key=lambda part: (part.first, part.name))
    content = {
        "disteval": "predictions", "version": VERSION, "settings": settings,
        "size": size, "in_a_row": in_a_row, "parts": [asdict(part) for part in parts],
    }  # fmt: skip
    write_atomically(folder / MANIFEST, lambda file: file.write(sealed(content)))
    remove_leftovers(folder, parts)


def remove_leftovers(folder: Path, parts: Sequence[Part]) -> None:
    """Remove what a folder with a manifest of these parts needs no more; it does no harm there."""
    with suppress(OSError):
        (folder / UNFINISHED).unlink(missing_ok=True)
        remove_strays(folder, {part.name for part in parts})
        for part in parts:
            (folder / (part.name + NOTE)).unlink(missing_ok=True)
