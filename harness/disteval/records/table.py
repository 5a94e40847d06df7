"""The records of one result as one table, whoever has written the files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.errors import DataError, UsageError
from disteval.extras import needs

if TYPE_CHECKING:
    import polars as pl

FATES = ("scored", "unscored", "errored", "refused", "cut")
"""What can become of a sample; one that was cut by a limit may have a score all the same."""

_TEXTS = ("answer", "prompt", "content", "target", "group", "cluster")
_HEAD = 1 << 20  # bytes of a file by which its format is known


@dataclass(frozen=True)
class Choice:
    """What the caller chooses where files have several of it; None chooses nothing.

    Attributes:
        id: The field of the sample's id.
        score: The field of the score, or the name of the metric.
        task: The task.
        group: The field by which scores are grouped, such as a language.
        cluster: The field of what several samples have in common, such as a document.
    """

    id: str | None = None
    score: str | None = None
    task: str | None = None
    group: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Records:
    """The records of one result, of all of its files.

    The columns of ``frame`` are: ``id`` (text), ``score`` (a finite float, or null), ``fate`` (one
    of `FATES`), ``answer`` and ``prompt`` (whole texts, or null), ``content`` (a digest by which
    equal samples are known, or null), ``target``, ``group`` and ``cluster`` (texts, or null),
    ``attempts`` (1 for a sample that was not retried), ``file`` (the index into ``files``) and
    ``line`` (of the file, from 1 up; in Parquet and archives, the record's number).

    Attributes:
        frame: One row a record, in the order of files and lines.
        harness: The harness that wrote the files; empty for plain records.
        files: The files, by the names that the user gave or below the folder that they gave.
        task: The task; empty if it has no name.
        metric: The name of the score.
        headline: The figure that the harness states for this score; None if it states none.
        stated: The number of samples that the harness says its task has; None if it does not.
        ids: The ids that the harness says its task has; None if it does not name them.
        settings: What is shown beside the result: model, version of the task, revision, limit.
        problems: What is wrong with whole files, such as settings that differ, in sentences.
        notes: What else a reader of the number should know, in sentences.
    """

    frame: pl.DataFrame
    harness: str
    files: tuple[str, ...]
    task: str = ""
    metric: str = ""
    headline: float | None = None
    stated: int | None = None
    ids: pl.Series | None = None
    settings: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(
    paths: Sequence[Path],
    *,
    id: str | None = None,  # noqa: A002 - the name of the option
    score: str | None = None,
    task: str | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> Records:
    """Read the files of one result, whose harness is found by their content.

    Args:
        paths: The files, or folders that have them; those of several jobs are one result.
        id: The field of each sample's id. If it is given, any file is read as plain records.
        score: The field of the score, or the name of the metric.
        task: The task, where the files have several.
        group: The field by which scores are grouped.
        cluster: The field of what several samples have in common.

    Raises:
        DataError: A file can't be read, is cut off or has values that make no sense.
        UsageError: There is nothing to read, or more than one task or score to choose from.
        LibraryMissingError: Polars is not installed.
    """
    with needs("records of samples", "records"):
        import polars  # noqa: F401 - every reader needs it
    choice = Choice(id, score, task, group, cluster)
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise UsageError("there is nothing to read; give the files that a harness has written")
    kinds = {file: "plain" if id is not None else _kind(file) for file in files}
    first = kinds[files[0]]
    for file, kind in kinds.items():
        if kind != first:
            raise UsageError(
                f"{files[0]} is a file of {_NAMES[first]} and {file} of {_NAMES[kind]}; give files "
                f"of one result"
            )
    return _completed(import_module(f"disteval.records.{first}").read(files, choice))


def cut_off(path: Path | str, where: str, error: object) -> DataError:
    """Return the error of a file that can't be read from a place on."""
    place = f"{path}, {where}" if where else str(path)
    return DataError(
        f"{place}: can't be read ({error}); the file is damaged or was not written to its end, so "
        f"copy it again or run that job again"
    )


def choose(what: str, option: str, found: Sequence[str], chosen: str | None) -> str:
    """Return what the caller has chosen of names, or the only one.

    Raises:
        UsageError: There is no such name, or several and no choice.
    """
    names = list(dict.fromkeys(found))
    if chosen in names:
        return str(chosen)
    if chosen is None and len(names) == 1:
        return names[0]
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    found_what = f"has no {what} {chosen!r}" if chosen is not None else f"has several {what}s"
    raise UsageError(f"the result {found_what}; give one of them by {option}: {listed or 'none'}")


_NAMES = {
    "plain": "plain records",
    "lm_eval": "lm-eval",
    "inspect_ai": "inspect_ai",
    "lighteval": "lighteval",
    "every_eval_ever": "Every Eval Ever",
    "predictions": "predictions of disteval",
}

_PATTERNS = {
    "lm_eval": ("results_*.json", "samples_*.jsonl"),
    "inspect_ai": ("*.eval", "*.json"),
    "lighteval": ("details_*.parquet",),
    "plain": ("*.jsonl", "*.parquet", "*.csv"),
}
"""The files that are looked for below a folder; the first harness that has one is taken."""


def _files(path: Path) -> list[Path]:
    """Return a file, or the files below a folder; a folder of predictions is one file."""
    if not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder that a harness has written")
    if not path.is_dir() or (path / ".manifest.json").exists():
        return [path]
    for patterns in _PATTERNS.values():
        found = sorted({file for each in patterns for file in path.rglob(each)})
        if found:
            return found
    looked = ", ".join(each for patterns in _PATTERNS.values() for each in patterns)
    raise DataError(f"{path} has no records: there is no {looked} below it; give another folder")


def _kind(path: Path) -> str:
    """Return which reader a file is for, by what it begins with."""
    if path.is_dir():
        return "predictions"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}); correct its mode") from error
    if head.startswith(b"PK"):
        return "inspect_ai"
    if head.startswith(b"PAR1"):
        return "lighteval" if path.name.startswith("details_") else "plain"
    if not head.lstrip().startswith(b"{"):
        return "plain"
    try:
        keys = set(json.loads(head.split(b"\n", 1)[0]))
    except ValueError:  # a file of one object on many lines, or a cut line
        keys = set()
    if keys >= {"doc_id", "arguments", "resps"}:
        return "lm_eval"
    if keys >= {"schema_version", "evaluation_id", "evaluation_name"}:
        return "every_eval_ever"
    if b'"eval"' in head and b'"plan"' in head and path.suffix == ".json":
        return "inspect_ai"
    if path.suffix == ".json":
        return "lm_eval" if path.name.startswith("results_") else "plain"
    return "plain"


def _completed(records: Records) -> Records:
    """Return records whose frame has all columns; a score that is not finite is none."""
    import polars as pl

    frame, score = records.frame, pl.col("score")
    types: dict[str, Any] = {"id": pl.String, "score": pl.Float64, "fate": pl.Enum(FATES)}
    types |= dict.fromkeys(_TEXTS, pl.String) | dict.fromkeys(("attempts", "file"), pl.UInt32)
    types["line"] = pl.UInt32
    defaults = {"attempts": 1, "file": 0}
    if "content" not in frame.columns and "prompt" in frame.columns:
        frame = frame.with_columns(content=pl.col("prompt").hash().cast(pl.String))
    frame = frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(defaults.get(name)))
        .cast(kind)
        .alias(name)
        for name, kind in types.items()
    )
    odd = frame.select((~score.is_finite()).sum()).item()
    fate = pl.col("fate").fill_null("scored")
    scored = pl.when(score.is_finite()).then(pl.lit("scored")).otherwise(pl.lit("unscored"))
    frame = frame.with_columns(
        score=pl.when(score.is_finite()).then(score),
        fate=pl.when(fate == "scored").then(scored.cast(types["fate"])).otherwise(fate),
    )
    notes = records.notes
    if odd:
        notes += (f"{odd} scores are NaN or infinite, and count as no score",)
    return replace(records, frame=frame, notes=notes)
