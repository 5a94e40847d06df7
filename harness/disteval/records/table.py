"""The records of one result as one table, whoever has written the files."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from disteval.arguments import found_value
from disteval.errors import DataError, UsageError
from disteval.files import once_each

FATES = ("scored", "unscored", "errored", "refused", "cut")
"""What can become of a sample; one that was cut by a limit may have a score all the same."""

DIGESTED = ("answer", "prompt", "content", "target")
"""The columns of texts that are held as digests, until some of them are read again."""

TEXTS = (*DIGESTED, "group", "cluster")
"""The columns of texts, each of which may be null."""

HARNESSES = {
    "": "plain records",
    "lm_eval": "lm-eval",
    "inspect_ai": "inspect_ai",
    "lighteval": "lighteval",
    "every_eval_ever": "Every Eval Ever",
    "predictions": "disteval",
}
"""What each harness is called."""

BY_POSITION = ("lm_eval", "lighteval", "predictions")
"""The harnesses whose ids are the numbers of records in the data, from 0 up."""

_KINDS: dict[str, tuple[set[str], ...]] = {
    "lm_eval": ({"doc_id", "arguments", "resps"}, {"results", "n-samples", "configs"}),
    "lighteval": ({"config_general", "results", "config_tasks"},),
    "inspect_ai": ({"eval", "plan", "status"},),
    "every_eval_ever": ({"schema_version", "evaluation_id"},),
}
"""The names by which the JSON files of a harness are known."""

_KEYS = set[str]().union(*(each for wanted in _KINDS.values() for each in wanted))
_SUFFIXES = {".eval", ".jsonl", ".json", ".parquet", ".csv"}
_HEAD = 1 << 20  # bytes of a file by which its format is known
_DECODER = json.JSONDecoder(object_pairs_hook=once_each)
NAMED = 5
"""The most ids that a sentence names."""

_DATED = re.compile(r"(?:samples|details)_(.+)_(\d{4}-\d\d-\d\dT[-\d.]+)")


@dataclass(frozen=True)
class Choice:
    """What the caller chooses where files have several of it; None chooses nothing.

    Attributes:
        id: The field of the sample's id. If it is given, any file is read as plain records.
        score: The field of the score, or the name of the metric.
        task: The task.
        group: The field by which scores are grouped, such as a language.
        cluster: The field of what several samples have in common, such as a document.
        only: The ids, as texts, of the records that are read, with whole texts; by default all are
            read, with digests of texts, which take less memory.
    """

    id: str | None = None
    score: str | None = None
    task: str | None = None
    group: str | None = None
    cluster: str | None = None
    only: pl.Series | None = None


@dataclass(frozen=True)
class Records:
    """The records of one result, of all of its files.

    The columns of ``frame`` are: ``id`` (whole numbers, or texts if one id is none), ``score`` (a
    finite float, or null), ``fate`` (one of `FATES`), ``answer``, ``prompt``, ``target`` and
    ``content``, by which equal samples are known (digests of 64 bits, or texts if the caller has
    chosen ids, or null), ``group`` and ``cluster`` (texts, or null), ``attempts`` (1 for a sample
    that was not retried), ``file``
    (the index into ``files``), ``line`` (of the file, from 1 up; in Parquet and archives, the
    record's number) and ``weight`` (of each score where the number is a weighted mean, else null).

    Attributes:
        frame: One row a record, in the order of files and lines.
        harness: The harness that wrote the files, one of `HARNESSES`; empty for plain records.
        files: The files, by the names that the user gave or below the folder that they gave.
        task: The task; empty if it has no name.
        metric: The name of the score.
        headline: The figure that the harness states for this score; None if it states none.
        stated: The number of samples that the harness says its task has; None if it does not.
        ids: The ids that the harness says its task has; None if it does not name them.
        aggregates: How the harness makes one figure of the scores: mean, sum, perplexity or bits;
            several if it is one of these, and nothing if it is not known.
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
    aggregates: tuple[str, ...] = ("mean",)
    settings: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Said(NamedTuple):
    """What a harness says of a whole run, in one file.

    Attributes:
        path: The file.
        settings: What has to be equal among the runs of one result; None where it is not said.
        figure: The figure of the metric.
        stated: The number of samples that the task has.
    """

    path: Path
    settings: Mapping[str, object]
    figure: float | None = None
    stated: int | None = None


def read(paths: Sequence[Path], choice: Choice) -> Records:
    """Read the files of one result, whose harness is found by their content.

    Args:
        paths: The files, or folders that have them; those of several jobs are one result.
        choice: What is read of them.

    Raises:
        DataError: A file can't be read, is cut off or has values that make no sense.
        UsageError: There is nothing to read, or more than one task or score to choose from.
    """
    kinds: list[tuple[Path, str]] = []
    left: list[Path] = []
    for path in paths:
        found, others = _files(path, are_plain=choice.id is not None)
        kinds += found.items()
        left += others
    if not kinds:
        raise UsageError("there is nothing to read; give the files that a harness has written")
    files, first = [file for file, _ in kinds], kinds[0][1]
    for file, kind in kinds:
        if kind != first:
            raise UsageError(
                f"{files[0]} is a file of {HARNESSES[first]} and {file} of {HARNESSES[kind]}; give "
                f"files of one result"
            )
    reader = import_module(f"disteval.records.{first or 'plain'}")
    try:
        return _completed(reader.read(files, choice), choice, left)
    except (pl.exceptions.PolarsError, UnicodeError, OverflowError) as error:
        raise cut_off(files[0], "or a file after it", error) from error


def cut_off(path: Path | str, where: str, error: object) -> DataError:
    """Return the error of a file that can't be read from a place on."""
    place = f"{path}, {where}" if where else str(path)
    return DataError(
        f"{place}: can't be read ({error}); the file is damaged or was not written as it should "
        f"be, so copy it again or run that job again"
    )


def choose(what: str, option: str, found: Iterable[str], chosen: str | None) -> str:
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


def parsed(data: bytes) -> dict[str, Any]:
    """Return the object that JSON has.

    Raises:
        ValueError: It is no JSON, no object, or an object has a field twice.
        RecursionError: It has too many lists in lists.
    """
    found = _DECODER.decode(data.removeprefix(BOM_UTF8).decode())
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, and found {found_value(found)}")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file of a harness."""
    try:
        return parsed(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise cut_off(path, "", error) from error


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not blank."""
    with path.open("rb") as file:
        for line, text in enumerate(file, 1):
            if not text.isspace():
                try:
                    yield line, parsed(text)
                except (ValueError, RecursionError) as error:
                    raise cut_off(path, f"line {line}", error) from error


def of_task(
    files: Sequence[Path], hint: str, chosen: str | None
) -> tuple[str, list[Path], list[tuple[Path, dict[str, Any]]]]:
    """Return a task, the files of its samples, and the results of the same runs.

    Names of files have the task and the date, as ``samples_TASK_DATE.jsonl`` and
    ``results_DATE.json``.

    Args:
        files: The files of all tasks.
        hint: What to give if there are no samples.
        chosen: The task; None if there is only one.
    """
    samples = [path for path in files if path.suffix != ".json"]
    if not samples:
        raise DataError(f"{files[0]} has no samples; {hint}")
    named = {path: found.groups() if (found := _DATED.fullmatch(path.stem)) else (path.stem, "")
             for path in samples}  # fmt: skip
    task = choose("task", "--task", [name for name, _ in named.values()], chosen)
    samples = [path for path in samples if named[path][0] == task]
    results = [path for path in files if path.suffix == ".json"]
    dates = {f"results_{named[path][1]}" for path in samples}
    same = [path for path in results if path.stem in dates] or results
    return task, samples, [(path, read_object(path)) for path in same]


def result(
    harness: str,
    files: Sequence[Path],
    records: Callable[[Path], Iterable[tuple[int, Any]]],
    rows: Callable[[Any], Iterable[tuple[tuple[str, str], dict[str, Any]]]],
    choice: Choice,
) -> Records:
    """Return the records of one metric of one task.

    Args:
        harness: One of `HARNESSES`.
        files: The files that have records.
        records: Yields the number of each record of a file, and the record.
        rows: Makes of a record its rows, each with the names of a task and a metric.
        choice: The task and the metric, if there are several.

    Raises:
        DataError: There is no record, or one has not the fields that it should have.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for number, path in enumerate(files):
        for line, record in records(path):
            try:
                for key, row in rows(record):
                    found[key].append({**row, "file": number, "line": line})
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                why = f"{type(error).__name__}: {error}"
                raise cut_off(path, f"record {line}", why) from error
    if not found:
        raise DataError(f"{files[0]} has no records; give the file of a job that has ended")
    task = choose("task", "--task", (name for name, _ in found), choice.task)
    metric = choose("metric", "--score", (each for name, each in sorted(found) if name == task),
                    choice.score)  # fmt: skip
    frame = pl.LazyFrame(found[task, metric], infer_schema_length=None)
    return Records(held(frame, choice).collect(), harness, tuple(map(str, files)), task, metric)


def with_said(records: Records, said: Sequence[Said], aggregates: tuple[str, ...]) -> Records:
    """Return records with what the harness says of each run.

    Its settings have to be equal, but for limits. Figures that differ, because each job has its
    own, are not stated of all samples.
    """
    settings = [
        {name: str(value) for name, value in each.settings.items() if value is not None}
        for each in said
    ]
    first = settings[0] if said else {}
    problems = tuple(
        f"{each.path} has {name} {mine.get(name)!r:.100}, and {said[0].path} has "
        f"{first.get(name)!r:.100}"
        for each, mine in zip(said, settings, strict=True)
        for name in {**first, **mine}
        if name != "limit" and mine.get(name) != first.get(name)
    )
    figures, sizes = {each.figure for each in said} - {None}, {each.stated for each in said}
    notes = records.notes
    if len(figures) > 1:
        notes += ("each job states a figure of its own, and none that is of all samples is stated",)
    return replace(
        records, settings=first, problems=(*records.problems, *problems), notes=notes,
        headline=figures.pop() if len(figures) == 1 else None,
        stated=sizes.pop() if len(sizes) == 1 else None, aggregates=aggregates,
    )  # fmt: skip


def value_of(record: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field such as ``a.b``, which may be in an object; None without."""
    if field in record:
        return record[field]
    found: Any = record
    for name in field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def labels(choice: Choice, *records: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the group and the cluster of a sample, from the first record that has the field."""
    return {
        name: next((text_of(found) for each in records if each
                    and (found := value_of(each, field)) is not None), None)
        for name in ("group", "cluster")
        if (field := getattr(choice, name)) is not None
    }  # fmt: skip


def text_of(value: Any) -> str | None:
    """Return a text as it is, and any other value, arrays as well, as JSON; None stays None."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(
        value, default=lambda each: each.tolist() if hasattr(each, "tolist") else repr(each)
    )


def held(frame: pl.LazyFrame, choice: Choice) -> pl.LazyFrame:
    """Return records with digests of texts; or those that the caller has chosen, with the texts."""
    if choice.only is not None:
        return frame.filter(pl.col("id").cast(pl.String).is_in(choice.only.implode()))
    there = [pl.col(name).cast(pl.String) for name in frame.collect_schema() if name in DIGESTED]
    return frame.with_columns(pl.when(each.is_not_null()).then(each.hash()) for each in there)


def keyed(ids: pl.Series) -> pl.Series:
    """Return ids as numbers, if all are whole ones that are written as usual, and else as texts."""
    texts = ids if ids.dtype.is_integer() else ids.cast(pl.String)
    numbers = texts.cast(pl.Int64, strict=False)
    if numbers.null_count() or not (numbers.cast(texts.dtype) == texts).all():
        return texts.cast(pl.String)
    return numbers


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Sort by id: numbers as they count, and shorter texts first, so that q9 is before q10."""
    if frame.schema["id"] == pl.String:
        return frame.sort(pl.col("id").str.len_chars(), "id")
    return frame if frame["id"].is_sorted() else frame.sort("id")


def some(ids: Iterable[object]) -> str:
    """List the first ids, and show by an ellipsis that there are more."""
    listed = [f"{each!r:.60}" for each in islice(ids, NAMED + 1)]
    return ", ".join(listed[:NAMED]) + (", …" if len(listed) > NAMED else "")


def _files(path: Path, are_plain: bool) -> tuple[dict[Path, str], list[Path]]:
    """Return the files that are read, each with the reader that it is for, and those that are not.

    Of a folder, those of a harness are taken, and plain ones if there are none of a harness. A
    folder of predictions counts as one file.

    Raises:
        DataError: There is nothing, or a file that is left out may be a damaged one of a harness.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; give a file or folder that a harness has written")
    if not path.is_dir() or (path / ".manifest.json").exists():
        return {path: "" if are_plain else _kind(path)}, []
    there = [each for each in sorted(path.rglob("*")) if _SUFFIXES & {*each.suffixes}]
    if not there:
        listed = ", ".join(sorted(_SUFFIXES))
        raise DataError(f"{path} has no records: there is no file {listed} below it; give another")
    known = [each for each in there if each.suffix in _SUFFIXES and each.is_file()]
    found = {} if are_plain else {file: kind for file in known if (kind := _kind(file))}
    if found:
        for each in known:
            if each not in found:
                _check_other(each)
    else:
        found = {file: "" for file in known if file.suffix != ".json"}
    return found, [each for each in there if each not in found]


def _check_other(path: Path) -> None:
    """Raise DataError if a file beside those of a harness may be one of them that was cut off."""
    size = path.stat().st_size
    try:
        if size and path.suffix == ".jsonl":
            next(objects(path), None)
        elif not size or path.suffix not in (".csv", ".parquet"):
            json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise cut_off(path, "", error) from error


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
        return "lighteval" if path.name.startswith("details_") else ""
    try:
        keys = set(parsed(head.split(b"\n", 1)[0]))
    except (ValueError, RecursionError):  # a file of one object on many lines, or a cut line
        keys = {key for key in _KEYS if b'"%s"' % key.encode() in head}
    return next(
        (kind for kind, wanted in _KINDS.items() if any(keys >= each for each in wanted)), ""
    )


def _completed(records: Records, choice: Choice, left: Sequence[Path]) -> Records:
    """Return records whose frame has all columns, and which name the files that were left out.

    A score that is not finite is none.
    """
    frame, is_number = records.frame, pl.col("score").is_finite()
    types: dict[str, Any] = {"score": pl.Float64, "fate": pl.Enum(FATES)}
    types |= dict.fromkeys(TEXTS, pl.String)
    if choice.only is None:
        types |= dict.fromkeys(DIGESTED, pl.UInt64)
    types |= dict.fromkeys(("attempts", "file", "line"), pl.UInt32) | {"weight": pl.Float64}
    usual = {"attempts": pl.lit(1), "file": pl.lit(0)}
    if "content" not in frame.columns and "prompt" in frame.columns:
        frame = frame.with_columns(content="prompt")
    lacking = [name for name in types if name not in frame.columns]
    frame = frame.with_columns(**{name: usual.get(name, pl.lit(None)) for name in lacking})
    frame = frame.select(keyed(frame["id"]), *(pl.col(name).cast(types[name]) for name in types))
    odd = frame.select((~is_number).sum()).item()
    scored = pl.when(is_number).then(pl.lit("scored")).otherwise(pl.lit("unscored"))
    has_other = pl.col("fate") != "scored"
    frame = frame.with_columns(
        score=pl.when(is_number).then("score"),
        fate=pl.when(has_other).then("fate").otherwise(scored.cast(types["fate"])),
    )
    notes = records.notes
    if odd:
        notes += (f"scores that are NaN or infinite, and count as none: {odd:,}",)
    if left:
        listed = ", ".join(map(str, left[:NAMED])) + (", …" if len(left) > NAMED else "")
        notes += (f"files of another kind, which were not read: {listed}",)
    return replace(records, frame=frame, notes=notes)
