"""Outputs of a model as a table: ids, and one column for each field.

Outputs are an array of any framework, a list of objects, or a tuple or dict of these. Each has one
row for each sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import kind_of, to_numpy

ID = "sample_id"
"""The name of the column that holds the global numbers of the samples."""

ONE = "prediction"
"""The name of the column of outputs that have only one."""

Ids = npt.NDArray[np.int64]
Form = Literal["one", "tuple", "dict"]
_ROW = {str: "text", bytes: "bytes"}
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Field:
    """A column, without its values.

    Attributes:
        name: The key of a dict, the number in a tuple, or `ONE`.
        kind: ``array``: an array with one row for each sample; ``ragged``: an array for each
            sample; ``text``, ``bytes``: strings; ``json``: objects that JSON can hold.
        stored: The dtype of an array in NumPy, such as ``<f4``.
        shape: The shape of a row of an ``array``.
    """

    name: str
    kind: Literal["array", "ragged", "text", "bytes", "json"]
    stored: str = ""
    shape: tuple[int, ...] = ()


class StoredColumn(NamedTuple):
    """A column: an array if the field's kind is ``array``, else a list with one entry a row."""

    field: Field
    values: Any

    def __getitem__(self, rows: Any) -> StoredColumn:
        if isinstance(self.values, np.ndarray) or isinstance(rows, slice):
            return StoredColumn(self.field, self.values[rows])
        return StoredColumn(
            self.field, [self.values[row] for row in np.arange(len(self.values))[rows]]
        )


class StoredTable(NamedTuple):
    """Rows of outputs.

    Attributes:
        ids: The samples' global numbers, int64 of shape (N,).
        form: Whether the outputs were one array or list, a tuple or a dict.
        columns: The columns, each with N rows.
    """

    ids: Ids
    form: Form
    columns: tuple[StoredColumn, ...]

    @property
    def fields(self) -> list[Field]:
        """The columns without their values."""
        return [column.field for column in self.columns]

    @property
    def layout(self) -> tuple[Form, list[str]]:
        """The form and the columns' names, which are the same in tables that can be `joined`."""
        return self.form, [column.field.name for column in self.columns]

    def pick(self, rows: Any) -> StoredTable:
        """Return some of the rows, given by a slice, a mask or numbers."""
        return StoredTable(
            self.ids[rows], self.form, tuple(column.__getitem__(rows) for column in self.columns)
        )

    def in_order(self) -> StoredTable:
        """Return the rows in the order of their ids."""
        if (self.ids[:-1] < self.ids[1:]).all():
            return self
        return self.pick(np.argsort(self.ids, kind="stable"))

    def size(self) -> int:
        """Return about how many bytes the rows take in memory and in files."""
        return 8 * len(self.ids) + sum(map(_size, self.columns))

    def rows(self) -> Iterator[Any]:
        """Yield each row as NumPy arrays, numbers and objects, in the form of the outputs."""
        return map(self._formed, zip(*(column.values for column in self.columns), strict=True))

    def outputs(self) -> Any:
        """Return the rows as outputs, whose arrays are NumPy's."""
        return self._formed(tuple(column.values for column in self.columns))

    def _formed(self, values: tuple[Any, ...]) -> Any:
        if self.form == "one":
            return values[0]
        names = [field.name for field in self.fields]
        return values if self.form == "tuple" else dict(zip(names, values, strict=True))


def table_of(ids: Ids, outputs: Any) -> StoredTable:
    """Return a batch's outputs as a table, whose arrays are copies.

    Raises:
        UsageError: The outputs have another form or another number of rows, or hold an object that
            can't be stored.
    """
    form: Form = "one"
    named: list[tuple[Any, Any]] = [(ONE, outputs)]
    if isinstance(outputs, Mapping):
        form, named = "dict", list(outputs.items())
    elif isinstance(outputs, tuple):
        form = "tuple"
        named = [(str(number), leaf) for number, leaf in enumerate(outputs)]
    columns = []
    for name, leaf in named:
        if not isinstance(name, str) or name in ("", ID):
            raise UsageError(
                f"predictions have a field {name!r}; a field's name must be a string, and neither "
                f"empty nor {ID!r}, so give it another name, with record= if predict can't"
            )
        column = _column(name, leaf)
        if len(column.values) != len(ids):
            raise UsageError(
                f"the predictions of {len(ids)} samples have {len(column.values)} rows in "
                f"{name!r}; return one row for each sample"
            )
        columns.append(column)
    if not columns:
        raise UsageError(f"predictions are an empty {form}; return at least one field")
    return StoredTable(np.array(ids, np.int64), form, tuple(columns))


def joined(tables: Sequence[StoredTable]) -> StoredTable:
    """Return the rows of several tables, which have the same form and names, as one.

    Raises:
        UsageError: The forms or the names differ, or a column holds bytes and other objects.
    """
    first = tables[0].layout
    for other in (table.layout for table in tables):
        if other != first:
            raise UsageError(
                f"predictions of some batches are {_described(*first)}, and of others "
                f"{_described(*other)}; return the same fields for every batch"
            )
    by_name = zip(*(table.columns for table in tables), strict=True)
    columns = tuple(_joined(columns) for columns in by_name)
    return StoredTable(np.concatenate([table.ids for table in tables]), tables[0].form, columns)


def _described(form: str, names: list[str]) -> str:
    return "one array or list" if form == "one" else f"a {form} with the fields {names}"


def _column(name: str, leaf: Any) -> StoredColumn:
    found = _of_array(name, leaf)
    if found is not None:
        return StoredColumn(Field(name, "array", found.dtype.str, found.shape[1:]), found)
    if isinstance(leaf, np.ndarray) and leaf.ndim == 1:  # of strings or objects
        leaf = leaf.tolist()
    if not isinstance(leaf, list):
        raise UsageError(
            f"predictions have {name!r} of type {type(leaf).__name__}; they must be an array, a "
            f"list, or a tuple or dict of these; record= can make them so"
        )
    return _list_column(name, leaf)


def _list_column(name: str, leaf: list[Any]) -> StoredColumn:
    for kind, label in _ROW.items():
        if leaf and all(type(row) is kind for row in leaf):
            return StoredColumn(Field(name, label), leaf)  # type: ignore[arg-type]
    arrays = [_of_array(name, row, rows=False) for row in leaf]
    known = [array for array in arrays if array is not None]
    if known and len(known) == len(leaf) and len({array.dtype for array in known}) == 1:
        return StoredColumn(Field(name, "ragged", known[0].dtype.str), known)
    return StoredColumn(Field(name, "json"), [_plain(name, row) for row in leaf])


def _joined(columns: Sequence[StoredColumn]) -> StoredColumn:
    fields, first = [column.field for column in columns], columns[0].field
    if first.kind == "array" and all(field == first for field in fields):
        return StoredColumn(first, np.concatenate([column.values for column in columns]))
    rows = [row for column in columns for row in column.values]
    if all(field == first for field in fields):
        return StoredColumn(first, rows)
    if {field.kind for field in fields} <= {"array", "ragged"} and (
        len({field.stored for field in fields}) == 1
    ):
        return StoredColumn(replace(first, kind="ragged", shape=()), rows)
    return _list_column(first.name, rows)


def _size(column: StoredColumn) -> int:
    values, kind = column.values, column.field.kind
    if kind == "array":
        return int(values.nbytes)
    if kind == "ragged":
        return int(sum(row.nbytes for row in values))
    if kind == "json":
        return len(json.dumps(values))
    return sum(map(len, values))


def _of_array(name: str, value: Any, *, rows: bool = True) -> npt.NDArray[Any] | None:
    """Return a copy of an array of any framework in NumPy, in native byte order and in C's order.

    It is None if the value is no array of numbers.

    Raises:
        UsageError: It is an array without rows, or of a dtype that can't be stored.
    """
    framework = kind_of(value)
    if framework == "numpy" and (
        isinstance(value, list | str | bytes) or not hasattr(value, "shape")
    ):
        return None
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if framework == "numpy" and np.asarray(value).dtype.kind in "OUS":
        return None
    if framework == "tensorflow":
        dtype = value.dtype.name
    try:
        found = to_numpy(value)
    except (UsageError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"predictions have {name!r} of {dtype or type(value).__name__}, which can't be stored "
            f"({error}); return real numbers or truth values, or convert them with record="
        ) from error
    if found.dtype.itemsize > 8:
        raise UsageError(
            f"predictions have {name!r} of {found.dtype}, which files can't hold; convert them to "
            f"float64 with record="
        )
    if rows and found.ndim == 0:
        raise UsageError(
            f"predictions have a single number in {name!r}; return one row for each sample"
        )
    return np.array(found, dtype=found.dtype.newbyteorder("="), order="C")


def _plain(name: str, value: Any) -> Any:
    """Return an object as JSON can hold it.

    Raises:
        UsageError: It holds an object that JSON can't hold.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(name, item) for key, item in value.items()}
    if isinstance(value, str | int | float) and not isinstance(value, np.generic):
        base = next(kind for kind in (str, int, float) if isinstance(value, kind))
        return base(value)
    if kind_of(value) != "numpy" or isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.str_):
            return str(value)
        array = _of_array(name, value, rows=False)
        if array is not None:
            return array.tolist()
        if isinstance(value, np.ndarray):
            return _plain(name, value.tolist())
    raise UsageError(
        f"predictions have an object of type {type(value).__name__} in {name!r}, which files can't "
        f"hold; return strings, numbers, None, arrays, and lists and dicts of these, or convert "
        f"them with record="
    )
