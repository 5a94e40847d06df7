"""A certificate: in one file, which samples a number is about; it holds no sample and no answer.

Its own digest shows that it was not changed by accident. Who has written it is shown by a signature
of the file, such as one of ``ssh-keygen -Y sign``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.errors import DataError
from disteval.files import file_digest
from disteval.judging.report import header

if TYPE_CHECKING:
    from disteval.records.verify import Verification

KIND = "certificate"
VERSION = 1
MAX_RANGES = 1_000
"""The most ranges of ids that are written; more are known by their digest alone."""

_MAX_BYTES = 1 << 20
_CHUNK = 1 << 20


def certify(found: Verification, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the certificate of a verification.

    Args:
        found: What was found out.
        digests: More digests by what they are of, such as ``weights``.
    """
    records, expected = found.records, found.expected
    files = [Path(name) for name in records.files if Path(name).is_file()]
    return sealed({
        "verdict": found.judged.word, "says": found.judged.covers,
        "harness": records.harness, "task": records.task, "metric": records.metric,
        "settings": records.settings,
        "figures": [each._asdict() for each in found.figures], "stated": found.stated,
        "samples": None if expected is None else expected.size, "ids": summary_of(found.ids),
        "counts": found.counts | {each.kind: each.count for each in found.facts},
        "files": [{"name": path.name, "bytes": path.stat().st_size, "sha256": file_digest(path)}
                  for path in files],
        "digests": {"data": expected.digest if expected else "", **digests},
    })  # fmt: skip


def certify_evaluation(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certificate of an evaluation of `disteval`, which has proved it.

    Args:
        report: What ``disteval eval --json`` writes.
    """
    size, values = report["size"], report.get("metrics") or report.get("accuracy") or {}
    return sealed({
        "verdict": "proved", "says": f"is about each of {size:,} samples once",
        "harness": "predictions", "task": report.get("task", ""), "metric": ", ".join(values),
        "settings": {"coverage": report["coverage"]}, "stated": None, "samples": size,
        "figures": [{"aggregate": name, "value": value, "samples": size}
                    for name, value in values.items()
                    if isinstance(value, (int, float)) and math.isfinite(value)],
        "ids": summary_of(range(size)), "counts": {"scored": size}, "files": [],
        "digests": {"contents": report["digest"] or ""},
    })  # fmt: skip


def as_text(found: Mapping[str, Any]) -> str:
    """Return a certificate as the text of its file."""
    return json.dumps(found, indent=1) + "\n"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a certificate with what all have: the version, the time, and its own digest."""
    head = header(KIND)
    about = {name: head[name] for name in ("kind", "version", "created")}
    found = {**about, "schema_version": VERSION, **content}
    return {**found, "digest": _digest(found)}


def summary_of(ids: Any) -> dict[str, Any]:
    """Return the number, the ranges and the digest of ids, which are in order.

    The digest is the SHA-256 of the ids, each with a line feed behind it.

    Args:
        ids: A series of Polars, or a range.
    """
    found = hashlib.sha256()
    for start in range(0, len(ids), _CHUNK):
        found.update("".join(f"{each}\n" for each in ids[start : start + _CHUNK]).encode())
    return {"count": len(ids), "ranges": _ranges(ids), "sha256": found.hexdigest()}


def _ranges(ids: Any) -> list[list[int]] | None:
    """Return the first and last id of each run of numbers; None of texts, or if there are many."""
    if isinstance(ids, range):
        return [[ids.start, ids.stop - 1]] if ids else []
    if not ids.dtype.is_integer():
        return None
    last = (ids.shift(-1) != ids + 1).fill_null(value=True)
    first = (ids.shift(1) != ids - 1).fill_null(value=True)
    if last.sum() > MAX_RANGES:
        return None
    return [list(each) for each in zip(ids.filter(first), ids.filter(last), strict=True)]


def read_certificate(path: Path) -> dict[str, Any] | None:
    """Return the certificate in a file; None if it is another file.

    Raises:
        DataError: It is of a version that is not known, or was changed.
    """
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        return None
    if found.get("schema_version") != VERSION:
        raise DataError(
            f"{path} is a certificate of version {found.get('schema_version')!r:.100}, and version "
            f"{VERSION} is known; install a newer disteval"
        )
    if found.pop("digest", None) != _digest(found):
        raise DataError(
            f"{path} was changed after it was written, for its digest is another one; ask for the "
            f"file again"
        )
    return found


def _digest(found: Mapping[str, Any]) -> str:
    text = json.dumps(found, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
