"""The three formats of the files of predictions.

A part's rows are in blocks of equally many rows, of which one can be read without the others.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from disteval.data.predictions.columns import ID, Field, StoredColumn, StoredTable
from disteval.errors import UsageError
from disteval.extras import needs

if TYPE_CHECKING:
    from disteval.data.predictions.parts import PartFile


class Format(NamedTuple):
    """A way to write a table to files, and to read blocks of its rows.

    Attributes:
        encode: A function of a table and the number of rows of a block, to the files' bytes by
            their suffix, and the offsets of blocks where they are needed. It raises UsageError if
            the format can't hold the table.
        decode: A function of the path of the files without their suffix, the part, and the number
            of a block, to its rows.
    """

    encode: Callable[[StoredTable, int], tuple[dict[str, bytes], list[int]]]
    decode: Callable[[Path, PartFile, int], StoredTable]


def _encode_json(table: StoredTable, block_rows: int) -> tuple[dict[str, bytes], list[int]]:
    """Write one JSON object a line, with the id under ``sample_id``, and one key for each field.

    Numbers are read back to the last bit, except for the sign and payload of a NaN. Numbers that
    are not finite are ``NaN``, ``Infinity`` and ``-Infinity``, as Python's json module writes them.
    Where a ragged array has no elements, its shape is under another key, with ``.shape`` after it.
    """
    columns = [_to_json(column) for column in table.columns]
    names = [ID, *(field.name for field in table.fields)]
    for name in names:
        if f"{name}.shape" in names:
            raise UsageError(
                f"predictions have a field {name!r} and a field {name + '.shape'!r}, under "
                f"which the file keeps shapes; give one another name with record="
            )
    file, offsets = io.BytesIO(), []
    for number, values in enumerate(zip(table.ids.tolist(), *columns, strict=True)):
        if number % block_rows == 0:
            offsets.append(file.tell())
        row = dict(zip(names, values, strict=True))
        for column in table.columns:
            if column.field.kind == "ragged" and 0 in column.values[number].shape[:-1]:
                row[f"{column.field.name}.shape"] = column.values[number].shape
        file.write(_line(row))
    return {".jsonl": file.getvalue()}, [*offsets, file.tell()]


def _decode_json(stem: Path, part: PartFile, block: int) -> StoredTable:
    begin, end = part.offsets[block : block + 2]
    with stem.with_name(stem.name + ".jsonl").open("rb") as file:
        file.seek(begin)
        lines = file.read(end - begin).split(b"\n")[:-1]
    rows = [json.loads(line) for line in lines]
    columns = tuple(StoredColumn(field, _from_json(field, rows)) for field in part.fields)
    return StoredTable(np.array([row[ID] for row in rows], np.int64), part.form, columns)


def _encode_npy(table: StoredTable, block_rows: int) -> tuple[dict[str, bytes], list[int]]:
    """Write one ``.npy`` file for each field, and one for the ids; each field is one array."""
    files = {}
    for name, values in [(ID, table.ids), *((c.field.name, c.values) for c in table.columns)]:
        if not isinstance(values, np.ndarray):
            raise UsageError(
                f"predictions have {name!r} that is not one array with the same shape and "
                f"dtype for every sample, which .npy files can't hold; use format='jsonl' or "
                f"'parquet', or record= an array"
            )
        if not re.fullmatch(r"[\w-][\w.-]{0,63}", name):
            raise UsageError(
                f"predictions have a field {name!r}, which can't be the name of a file; give "
                f"it another name with record="
            )
        file = io.BytesIO()
        np.save(file, values, allow_pickle=False)
        files[f".{name}.npy"] = file.getvalue()
    return files, []


def _decode_npy(stem: Path, part: PartFile, block: int) -> StoredTable:
    rows = slice(block * part.block_rows, (block + 1) * part.block_rows)

    def read(name: str) -> Any:
        path = stem.with_name(f"{stem.name}.{name}.npy")
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # an array without elements can't be mapped
            found = np.load(path, allow_pickle=False)
        return np.array(found[rows])

    columns = tuple(StoredColumn(field, read(field.name)) for field in part.fields)
    return StoredTable(read(ID), part.form, columns)


def _encode_parquet(table: StoredTable, block_rows: int) -> tuple[dict[str, bytes], list[int]]:
    """Write Parquet files with one column for each field: numbers, lists of numbers, and strings.

    An array with several dimensions is a list of its elements in C order. A ragged one has its
    shapes in another column, with ``.shape`` after its name. Other objects are text in JSON.
    """
    pa, parquet = _pyarrow()
    columns = {ID: pa.array(table.ids)}
    for column in table.columns:
        for name, values in _to_arrow(pa, column).items():
            if name in columns:
                raise UsageError(
                    f"predictions have two columns {name!r} in Parquet; give one of them "
                    f"another name with record="
                )
            columns[name] = values
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, row_group_size=block_rows)
    return {".parquet": file.getvalue()}, []


def _decode_parquet(stem: Path, part: PartFile, block: int) -> StoredTable:
    _, parquet = _pyarrow()
    with parquet.ParquetFile(stem.with_name(stem.name + ".parquet")) as file:
        found = file.read_row_group(block)
    columns = tuple(StoredColumn(field, _from_arrow(found, field)) for field in part.fields)
    return StoredTable(found.column(ID).to_numpy(), part.form, columns)


_to_text = json.JSONEncoder(ensure_ascii=False).encode

FORMATS = {
    "jsonl": Format(_encode_json, _decode_json),
    "npy": Format(_encode_npy, _decode_npy),
    "parquet": Format(_encode_parquet, _decode_parquet),
}
"""The formats by name."""


def _line(row: dict[str, Any]) -> bytes:
    try:
        return _to_text(row).encode() + b"\n"
    except UnicodeEncodeError:  # a surrogate, which only an escape can hold
        return json.dumps(row).encode() + b"\n"


def _to_json(column: StoredColumn) -> list[Any]:
    kind, values = column.field.kind, column.values
    if kind == "array":
        return values.tolist()  # type: ignore[no-any-return]
    if kind == "ragged":
        return [row.tolist() for row in values]
    if kind == "bytes":
        return [base64.b64encode(row).decode() for row in values]
    return values  # type: ignore[no-any-return]


def _from_json(field: Field, rows: list[dict[str, Any]]) -> Any:
    values = [row[field.name] for row in rows]
    if field.kind == "array":
        return np.array(values, field.stored).reshape(len(values), *field.shape)
    if field.kind == "ragged":
        shapes = [row.get(f"{field.name}.shape", -1) for row in rows]
        found = [np.array(value, field.stored) for value in values]
        return [
            value if shape == -1 else value.reshape(shape)
            for value, shape in zip(found, shapes, strict=True)
        ]
    if field.kind == "bytes":
        return [base64.b64decode(row) for row in values]
    return values


def _pyarrow() -> tuple[Any, Any]:
    with needs("predictions in Parquet", "parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def _to_arrow(pa: Any, column: StoredColumn) -> dict[str, Any]:
    field, values = column
    if field.kind == "array":
        if not field.shape:
            return {field.name: pa.array(values)}
        flat = values.reshape(len(values), -1)
        return {field.name: _lists(pa, flat.ravel(), [flat.shape[1]] * len(flat))}
    if field.kind == "ragged":
        flat = np.concatenate([row.ravel() for row in values])
        found = {field.name: _lists(pa, flat, [row.size for row in values])}
        shapes = [np.array(row.shape, np.int32) for row in values]
        every = np.concatenate(shapes)
        return {**found, f"{field.name}.shape": _lists(pa, every, [len(one) for one in shapes])}
    if field.kind == "bytes":
        return {field.name: pa.array(values, pa.binary())}
    if field.kind == "text":
        try:
            return {field.name: pa.array(values, pa.string())}
        except UnicodeEncodeError as error:
            raise UsageError(
                f"predictions have text in {field.name!r} that is not Unicode ({error}), which "
                f"Parquet can't hold; use format='jsonl'"
            ) from None
    return {field.name: pa.array([json.dumps(value) for value in values], pa.string())}


def _lists(pa: Any, flat: Any, lengths: Sequence[int]) -> Any:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _from_arrow(found: Any, field: Field) -> Any:
    column = found.column(field.name)
    if field.kind == "array" and not field.shape:
        return column.to_numpy().astype(field.stored)
    if field.kind == "array":
        flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.astype(field.stored).reshape(found.num_rows, *field.shape)
    if field.kind == "json":
        return [json.loads(value) for value in column.to_pylist()]
    if field.kind != "ragged":
        return column.to_pylist()
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(field.stored)
    shapes = found.column(f"{field.name}.shape").to_pylist()
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [
        row.reshape(shape) for row, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)
    ]


def block_rows(table: StoredTable) -> int:
    """Return how many rows a block has: up to 1024, and about a MiB or less, but at least one."""
    a_row = table.size() // max(1, len(table.ids))
    return max(1, min(1024, (1 << 20) // max(1, a_row)))


def check_format(name: str) -> None:
    """Raise LibraryMissingError if a package is missing that a format needs."""
    if name == "parquet":
        _pyarrow()
