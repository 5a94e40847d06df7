"""Plain records: any JSON lines, CSV or Parquet with a field for the id and one for the score."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from disteval.arguments import did_you_mean, found_value
from disteval.errors import DataError, UsageError
from disteval.records.table import Choice, Records, cut_off

_USUAL = {
    "answer": ("answer", "response", "output", "prediction", "completion"),
    "prompt": ("prompt", "question", "input"),
    "target": ("target", "reference", "gold", "label"),
}
"""The fields of texts that are taken where they have one of these names."""

_CHUNK = 100_000  # records that are held as Python's objects
_SNIFFED = 100  # records whose fields are those of the file

Fields = Mapping[str, str]


def read(files: Sequence[Path], choice: Choice) -> Records:
    """Read the files, whose records are put one after another."""
    frames = []
    for number, path in enumerate(files):
        frame = _read_one(path, choice)
        frames.append(frame.with_columns(file=pl.lit(number, pl.UInt32)))
    kinds = {frame.schema["id"].is_integer() for frame in frames if frame.height}
    if len(kinds) > 1:
        raise DataError(
            f"the ids of {files[0]} and of another file are numbers in one and texts in the other; "
            f"write them alike"
        )
    frame = pl.concat([each.with_columns(pl.col("id").cast(pl.String)) for each in frames],
                      how="diagonal")  # fmt: skip
    return Records(
        frame=frame, harness="", files=tuple(map(str, files)), task=choice.task or "",
        metric=str(choice.score),
    )  # fmt: skip


def _read_one(path: Path, choice: Choice) -> pl.DataFrame:
    with path.open("rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        return _from_columns(path, choice, pl.scan_parquet(path))
    if head.lstrip()[:1] in (b"{", b"["):
        return _from_json(path, choice)
    return _from_columns(path, choice, pl.scan_csv(path, infer_schema=False))


def _fields(path: Path, choice: Choice, names: Sequence[str]) -> dict[str, str]:
    """Return the field of each column.

    Raises:
        UsageError: A field that is needed was not given, or is not in the file.
    """
    wanted = {name: getattr(choice, name) for name in ("id", "score", "group", "cluster")}
    for name, chosen in wanted.items():
        if chosen is None and name in ("id", "score"):
            raise UsageError(
                f"{path} is no file of a harness that is known; give the fields of the sample's id "
                f"and score by --id and --score, of these: {', '.join(names)}"
            )
        if chosen is not None and chosen not in names and chosen.partition(".")[0] not in names:
            raise UsageError(
                f"{path} has no field {chosen!r}; it has {', '.join(names)}."
                f"{did_you_mean(chosen, names)}"
            )
    found = {name: str(chosen) for name, chosen in wanted.items() if chosen is not None}
    for name, usual in _USUAL.items():
        there = [each for each in usual if each in names and each not in found.values()]
        if there:
            found[name] = there[0]
    return found


def _from_columns(path: Path, choice: Choice, lazy: pl.LazyFrame) -> pl.DataFrame:
    """Read a file of columns: Parquet, whose columns have types, or CSV, where all are text."""
    try:
        schema = lazy.collect_schema()
        fields = _fields(path, choice, schema.names())
        chosen = {name: _nested(field, schema) for name, field in fields.items()}
        frame = lazy.select(each.alias(name) for name, each in chosen.items()).collect()
    except (PolarsError, OSError) as error:
        raise cut_off(path, "", str(error).splitlines()[0]) from error
    kind = frame.schema["id"]
    if not (kind.is_integer() or kind in (pl.String, pl.Categorical) or isinstance(kind, pl.Enum)):
        raise DataError(
            f"{path}: the field {fields['id']!r} holds {kind}, and an id is a whole number or a "
            f"text; give another field by --id"
        )
    for name in set(fields) - {"id", "score"}:
        if frame.schema[name].is_nested():
            frame = frame.drop(name)
    score = frame["score"]
    if score.dtype == pl.String:
        words = {"true": "1", "false": "0"}
        score = score.str.strip_chars()
        lower = score.str.to_lowercase().replace(words)
        frame = frame.with_columns(score=lower.replace("", None).cast(pl.Float64, strict=False))
        wrong = frame["score"].is_null() & score.is_not_null() & (score != "")
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise _no_number(path, f"record {row + 1}", fields["score"], score[row])
    elif not (score.dtype.is_numeric() or score.dtype in (pl.Boolean, pl.Null)):
        raise _no_number(path, "record 1", fields["score"], score.dtype)
    frame = frame.with_columns(pl.col("score").cast(pl.Float64)).with_row_index("line", 1)
    if frame["id"].null_count():
        row = frame["id"].is_null().arg_max()
        raise _no_id(path, f"record {int(row or 0) + 1}", fields["id"], None)
    return frame


def _nested(field: str, schema: Mapping[str, Any]) -> pl.Expr:
    """Return the column of a field such as ``a.b``, which may be in a struct."""
    if field in schema:
        return pl.col(field)
    first, *rest = field.split(".")
    found = pl.col(first)
    for each in rest:
        found = found.struct.field(each)
    return found


def _from_json(path: Path, choice: Choice) -> pl.DataFrame:
    """Read JSON lines by Polars; and line by line where types are mixed or something is wrong."""
    firsts = [record for _, record in islice(_objects(path), _SNIFFED)]
    if not firsts:
        raise DataError(f"{path} has no records; give the file of a job that has ended")
    names = list(dict.fromkeys(name for record in firsts for name in record))
    fields = _fields(path, choice, names)
    frame = _at_once(path, fields, firsts)
    return _line_by_line(path, fields) if frame is None else frame


def _at_once(
    path: Path, fields: Fields, firsts: Sequence[Mapping[str, Any]]
) -> pl.DataFrame | None:
    """Read JSON lines whose ids and scores have one type; return None if they have not."""
    kinds = [{type(record.get(fields[name])) for record in firsts} for name in ("id", "score")]
    known: dict[Any, Any] = {int: pl.Int64, str: pl.String, bool: pl.Boolean, float: pl.Float64}
    id_kind, score_kind = (known.get(next(iter(each))) for each in kinds)
    if kinds[1] == {int, float} or score_kind == pl.Int64:
        kinds[1], score_kind = {float}, pl.Float64
    fits = id_kind in (pl.Int64, pl.String) and score_kind in (pl.Boolean, pl.Float64)
    if not fits or any(len(each) > 1 for each in kinds) or len(set(fields.values())) < len(fields):
        return None
    lines, has_others = _scanned(path, fields["id"])
    if id_kind == pl.String and has_others:
        return None
    schema: dict[str, Any] = dict.fromkeys(fields.values(), pl.String)
    try:
        frame = pl.scan_ndjson(
            path, schema=schema | {fields["id"]: id_kind, fields["score"]: score_kind}
        ).collect()
    except PolarsError:  # the other way names the line, or can read it
        return None
    frame = frame.select(pl.col(field).alias(name) for name, field in fields.items())
    if frame["id"].null_count() or frame.height != lines:
        return None
    return frame.with_columns(pl.col("score").cast(pl.Float64)).with_row_index("line", 1)


def _scanned(path: Path, field: str) -> tuple[int, bool]:
    """Return how many lines there are, and whether a field's value may be something but a text.

    Polars makes a text of any value.
    """
    name = re.escape(json.dumps(field, ensure_ascii=False).encode())
    not_text = re.compile(name + rb'\s*:\s*[^"\s]')
    count, found = 0, False
    with path.open("rb") as file:
        while lines := file.readlines(1 << 20):
            count += len(lines)
            found = found or not_text.search(b"".join(lines)) is not None
    return count, found


def _line_by_line(path: Path, fields: Fields) -> pl.DataFrame:
    """Read JSON lines, and name the line of what is wrong."""
    first, frames = None, []
    schema: dict[str, Any] = {"line": pl.UInt32, **dict.fromkeys(fields, pl.String)}
    schema["score"] = pl.Float64
    records = _objects(path)
    while chunk := list(islice(records, _CHUNK)):
        rows = []
        for line, record in chunk:
            row = {name: _value(record, field) for name, field in fields.items()}
            kind = type(row["id"])
            if kind not in (int, str):
                raise _no_id(path, f"line {line}", fields["id"], row["id"])
            first = first or (line, row["id"], kind)
            if kind is not first[2]:
                raise DataError(
                    f"{path}: the ids are of mixed types: line {first[0]} has {first[1]!r:.200} "
                    f"and line {line} has {row['id']!r:.200}; write all as numbers or all as texts"
                )
            if type(row["score"]) not in (int, float, bool, type(None)):
                raise _no_number(path, f"line {line}", fields["score"], row["score"])
            texts = {name: _text(row[name]) for name in fields if name != "score"}
            rows.append({**row, **texts, "line": line})
        frames.append(pl.DataFrame(rows, schema=schema, strict=False))
    frame = pl.concat(frames)
    return frame if first and first[2] is str else frame.with_columns(pl.col("id").cast(pl.Int64))


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not blank."""
    with path.open("rb") as file:
        for line, text in enumerate(file, 1):
            if text.isspace():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise cut_off(path, f"line {line}", error) from error
            if not isinstance(record, dict):
                raise DataError(
                    f"{path}, line {line}: expected an object, and found "
                    f"{found_value(record)}; write one object a line, as JSON lines have it"
                )
            yield line, record


def _value(record: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field such as ``a.b``, which may be in an object; None without."""
    if field in record:
        return record[field]
    found: Any = record
    for name in field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _no_id(path: Path, where: str, field: str, value: object) -> DataError:
    return DataError(
        f"{path}, {where}: the id {field!r} is {found_value(value)}, and an id is a whole number "
        f"or a text; give another field by --id"
    )


def _no_number(path: Path, where: str, field: str, value: object) -> DataError:
    return DataError(
        f"{path}, {where}: the score {field!r} is {found_value(value)}, and a score is a number, "
        f"true, false or nothing; give another field by --score"
    )
