"""Plain records: any JSON lines, CSV or Parquet with a field for the id and one for the score."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from disteval.arguments import did_you_mean, found_value
from disteval.errors import DataError, UsageError
from disteval.records.table import Choice, Records, cut_off, held, keyed, objects, text_of, value_of

_USUAL = {
    "answer": ("answer", "response", "output", "prediction", "completion"),
    "prompt": ("prompt", "question", "input"),
    "target": ("target", "reference", "gold", "label"),
}
"""The fields of texts that are taken where they have one of these names."""

_NEEDED = ("id", "score")
_WANTED = {
    "id": "an id is a whole number or a text",
    "score": "a score is a number, true, false or nothing",
}

_TYPES: dict[str, dict[Any, Any]] = {
    "id": {int: pl.Int64, str: pl.String},
    "score": {bool: pl.Boolean, float: pl.Float64},
}
"""What Polars reads values of JSON as, without making one type of another."""

_CHUNK = 100_000  # records that are held as Python's objects
_PIECE = 1 << 23  # bytes of JSON lines that are read at once
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
    return Records(
        frame=pl.concat(frames, how="diagonal_relaxed"), harness="", files=tuple(map(str, files)),
        task=choice.task or "", metric=str(choice.score), aggregates=("mean", "sum"),
    )  # fmt: skip


def ids_of(path: Path, field: str | None, by_position: bool) -> pl.Series | int:
    """Return the ids of the samples in a data file, or their number if they have no ids.

    Args:
        path: A text with an id a line, or JSON lines, CSV or Parquet with a record a sample.
        field: The field of the ids; by default ``id``, if there is such a field.
        by_position: Whether ids are numbers of records, unless a field is given.
    """
    if path.suffix == ".txt":
        lines = path.read_text(encoding="utf-8").splitlines()
        return keyed(pl.Series("id", [line for line in lines if line], pl.String))
    lazy = _columns_of(path)
    names = lazy.collect_schema().names() if lazy is not None else next(objects(path))[1]
    if field is None and ("id" not in names or by_position):
        if lazy is None:
            return sum(1 for _ in objects(path))
        return int(lazy.select(pl.len()).collect().item())
    return keyed(_read_one(path, Choice(id=field or "id"), ("id",))["id"])


def _columns_of(path: Path) -> pl.LazyFrame | None:
    """Return a file of columns, Parquet or CSV; None if it is of JSON lines."""
    with path.open("rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        return pl.scan_parquet(path)
    return None if head.lstrip()[:1] in (b"{", b"[") else pl.scan_csv(path, infer_schema=False)


def _read_one(path: Path, choice: Choice, needed: Sequence[str] = _NEEDED) -> pl.DataFrame:
    lazy = _columns_of(path)
    if lazy is None:
        return _from_json(path, choice, needed)
    return _from_columns(path, choice, needed, lazy)


def _fields(
    path: Path, choice: Choice, needed: Sequence[str], names: Sequence[str]
) -> dict[str, str]:
    """Return the field of each column that is needed or chosen, and of usual texts.

    Raises:
        UsageError: A field that is needed was not given, or is not in the file.
    """
    wanted = {name: getattr(choice, name) for name in ("id", "score", "group", "cluster")}
    for name, chosen in wanted.items():
        if chosen is None and name in needed:
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
    for name, usual in _USUAL.items() if "score" in needed else ():
        there = [each for each in usual if each in names and each not in found.values()]
        found.update((name, each) for each in there[:1])
    return found


def _from_columns(
    path: Path, choice: Choice, needed: Sequence[str], lazy: pl.LazyFrame
) -> pl.DataFrame:
    """Read a file of columns: Parquet, whose columns have types, or CSV, where all are text."""
    try:
        schema = lazy.collect_schema()
        fields = _fields(path, choice, needed, schema.names())
        for field in fields.values():
            if f"{field}_duplicated_0" in schema:  # the name that Polars gives to the second one
                raise DataError(f"{path} has two columns {field!r}; give each a name of its own")
        chosen = {name: _nested(field, schema) for name, field in fields.items()}
        lazy = lazy.select(each.alias(name) for name, each in chosen.items())
        kinds = lazy.collect_schema()
        texts = [name for name in kinds if name not in _NEEDED]
        lazy = lazy.drop(name for name in texts if kinds[name].is_nested())
        frame = held(lazy.with_row_index("line", 1), choice).collect(engine="streaming")
    except (PolarsError, OSError) as error:
        raise cut_off(path, "", str(error).splitlines()[0]) from error
    kind = frame.schema["id"]
    if not (kind.is_integer() or kind in (pl.String, pl.Categorical) or isinstance(kind, pl.Enum)):
        raise _wrong(path, "record 1", "id", fields["id"], kind)
    if frame["id"].null_count():
        row = int(frame["id"].is_null().arg_max() or 0)
        raise _wrong(path, f"record {row + 1}", "id", fields["id"], None)
    return frame if "score" not in fields else _with_numbers(path, fields["score"], frame)


def _with_numbers(path: Path, field: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of a file with scores that are floats."""
    score = frame["score"]
    if score.dtype == pl.String:
        score = score.str.strip_chars().str.to_lowercase().replace("", None)
        numbers = score.replace({"true": "1", "false": "0"}).cast(pl.Float64, strict=False)
        wrong = numbers.is_null() & score.is_not_null()
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise _wrong(path, f"record {row + 1}", "score", field, frame["score"][row])
        score = numbers
    elif not (score.dtype.is_numeric() or score.dtype in (pl.Boolean, pl.Null)):
        raise _wrong(path, "record 1", "score", field, score.dtype)
    return frame.with_columns(score.cast(pl.Float64))


def _nested(field: str, schema: Mapping[str, Any]) -> pl.Expr:
    """Return the column of a field such as ``a.b``, which may be in a struct."""
    if field in schema:
        return pl.col(field)
    first, *rest = field.split(".")
    found = pl.col(first)
    for each in rest:
        found = found.struct.field(each)
    return found


def _from_json(path: Path, choice: Choice, needed: Sequence[str]) -> pl.DataFrame:
    """Read JSON lines by Polars; and line by line where types are mixed or something is wrong."""
    firsts = [record for _, record in islice(objects(path), _SNIFFED)]
    if not firsts:
        raise DataError(f"{path} has no records; give the file of a job that has ended")
    names = list(dict.fromkeys(name for record in firsts for name in record))
    fields = _fields(path, choice, needed, names)
    frame = _at_once(path, choice, fields, firsts)
    return _line_by_line(path, choice, fields) if frame is None else frame


def _at_once(
    path: Path, choice: Choice, fields: Fields, firsts: Sequence[Mapping[str, Any]]
) -> pl.DataFrame | None:
    """Read JSON lines whose ids and scores have one type; return None if they have not."""
    schema: dict[str, Any] = dict.fromkeys(fields.values(), pl.String)
    for name in {"id", "score"} & set(fields):
        kinds = {type(record.get(fields[name])) for record in firsts}
        if name == "score" and kinds <= {int, float}:
            kinds = {float}
        kind = _TYPES[name].get(kinds.pop()) if len(kinds) == 1 else None
        if kind is None:
            return None
        schema[fields[name]] = kind
    names = {name for record in firsts for name in record}
    if len(schema) < len(fields) or not names >= set(schema):
        return None
    id_field = fields["id"]
    odd = pl.any_horizontal(_odd(schema, id_field)).any()
    frames, count = [], 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE) + file.readline():
            try:
                lines = pl.read_csv(piece, has_header=False, separator="\x1f", quote_char=None,
                                    infer_schema=False, new_columns=["line"])  # fmt: skip
                frame = pl.read_ndjson(piece, schema=schema)
            except PolarsError:  # the other way names the line, or can read it
                return None
            is_whole = frame.height == lines.height and not frame[id_field].null_count()
            if not is_whole or lines.select(odd).item():
                return None
            columns = [pl.col(field).alias(name) for name, field in fields.items()]
            rows = frame.lazy().select(columns).with_row_index("line", 1 + count)
            frames.append(held(rows, choice).collect())
            count += lines.height
    frame = pl.concat(frames, rechunk=False)
    if "score" in fields:
        frame = frame.with_columns(pl.col("score").cast(pl.Float64))
    return frame


def _odd(schema: Mapping[str, Any], id_field: str) -> list[pl.Expr]:
    """Return what is true of lines that Polars may read in another way than Python.

    Of a field that is there twice Polars takes the first value, it makes a text of any id, and it
    writes numbers and lists in another way.
    """
    line = pl.col("line")
    odd = [line.str.contains(r'\\[u/][^"\\]*"\s*:')]  # a field that is written with escapes
    for field, kind in schema.items():
        name = pl.escape_regex(json.dumps(field, ensure_ascii=False)) + r"\s*:"
        odd.append(line.str.count_matches(name) > 1)
        if kind == pl.String:
            other = r'[^"\s]' if field == id_field else r"(?:[\[{]|-?\d+[.eE])"
            odd.append(line.str.contains(name + r"\s*" + other))
    return odd


def _line_by_line(path: Path, choice: Choice, fields: Fields) -> pl.DataFrame:
    """Read JSON lines, and name the line of what is wrong."""
    first: tuple[int, Any] | None = None
    schema: dict[str, Any] = {"line": pl.UInt32, **dict.fromkeys(fields, pl.String)}
    if "score" in fields:
        schema["score"] = pl.Float64
    frames, records = [], objects(path)
    while chunk := list(islice(records, _CHUNK)):
        rows = []
        for line, record in chunk:
            row = {name: value_of(record, field) for name, field in fields.items()}
            an_id, score = row["id"], row.get("score")
            if type(an_id) not in (int, str):
                raise _wrong(path, f"line {line}", "id", fields["id"], an_id)
            first = first or (line, an_id)
            if type(an_id) is not type(first[1]):
                raise DataError(
                    f"{path}: the ids are of mixed types: line {first[0]} has {first[1]!r:.200} "
                    f"and line {line} has {an_id!r:.200}; write all as numbers or all as texts"
                )
            if type(score) not in (int, float, bool, type(None)):
                raise _wrong(path, f"line {line}", "score", fields["score"], score)
            texts = {name: text_of(value) for name, value in row.items() if name != "score"}
            rows.append({**row, **texts, "line": line})
        frame = pl.LazyFrame(rows, schema=schema, strict=False)
        frames.append(held(frame, choice).collect())
    frame = pl.concat(frames)
    numbers = frame["id"].cast(pl.Int64, strict=False)
    are_texts = first is None or isinstance(first[1], str) or numbers.null_count() > 0
    return frame if are_texts else frame.with_columns(id=numbers)


def _wrong(path: Path, where: str, name: str, field: str, value: object) -> DataError:
    """Return the error of an id or a score of another type."""
    return DataError(
        f"{path}, {where}: the {name} {field!r} is {found_value(value)}, and {_WANTED[name]}; give "
        f"another field by --{name}"
    )
