"""Outputs of a model as a table: ids, and one column for each field, with all that restores them.

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

from disteval.data.predictions.frameworks import from_numpy, of_array, plain
from disteval.errors import UsageError

ID = "sample_id"
"""The name of the column that holds the global numbers of the samples."""

ONE = "prediction"
"""The name of the column of outputs that have only one."""

Ids = npt.NDArray[np.int64]
Form = Literal["one", "tuple", "dict"]
_ROW = {str: "text", bytes: "bytes"}


@dataclass(frozen=True)
class Field:
    """A column, without its values.

    Attributes:
        name: The key of a dict, the number in a tuple, or `ONE`.
        kind: ``array``: an array with one row for each sample; ``ragged``: an array for each
            sample; ``text``, ``bytes``: strings; ``json``: objects that JSON can hold.
        dtype: The dtype in the framework, such as ``bfloat16``.
        stored: The dtype in NumPy, such as ``<f4``.
        shape: The shape of a row of an ``array``.
        framework: ``numpy``, ``torch``, ``jax`` or ``tensorflow``.
        device: The kind of torch's device, such as ``cuda``.
        stacked: Whether the rows of a ``ragged`` column were arrays of whole batches.
        exact: Whether the outputs can be restored to the last bit, with their types.
    """

    name: str
    kind: Literal["array", "ragged", "text", "bytes", "json"]
    dtype: str = ""
    stored: str = ""
    shape: tuple[int, ...] = ()
    framework: str = "numpy"
    device: str = "cpu"
    stacked: bool = False
    exact: bool = True


class Column(NamedTuple):
    """A column: an array if the field's kind is ``array``, else a list with one entry a row."""

    field: Field
    values: Any

    def __getitem__(self, rows: Any) -> Column:
        if isinstance(self.values, np.ndarray) or isinstance(rows, slice):
            return Column(self.field, self.values[rows])
        return Column(self.field, [self.values[row] for row in np.arange(len(self.values))[rows]])


class Table(NamedTuple):
    """Rows of outputs.

    Attributes:
        ids: The samples' global numbers, int64 of shape (N,).
        form: Whether the outputs were one array or list, a tuple or a dict.
        columns: The columns, each with N rows.
    """

    ids: Ids
    form: Form
    columns: tuple[Column, ...]

    @property
    def fields(self) -> list[Field]:
        """The columns without their values."""
        return [column.field for column in self.columns]

    @property
    def is_exact(self) -> bool:
        """Whether the outputs can be restored to the last bit, with their types."""
        return all(field.exact for field in self.fields)

    def pick(self, rows: Any) -> Table:
        """Return some of the rows, given by a slice, a mask or numbers."""
        return Table(
            self.ids[rows], self.form, tuple(column.__getitem__(rows) for column in self.columns)
        )

    def in_order(self) -> Table:
        """Return the rows in the order of their ids."""
        if (self.ids[:-1] < self.ids[1:]).all():
            return self
        return self.pick(np.argsort(self.ids, kind="stable"))

    def size(self) -> int:
        """Return about how many bytes the rows take in memory and in files."""
        return 8 * len(self.ids) + sum(map(_size, self.columns))

    def rows(self) -> Iterator[Any]:
        """Yield each row as NumPy arrays, numbers and objects, in the form of the outputs."""
        names = [field.name for field in self.fields]
        for values in zip(*(column.values for column in self.columns), strict=True):
            if self.form == "one":
                yield values[0]
            else:
                yield values if self.form == "tuple" else dict(zip(names, values, strict=True))

    def outputs(self, *, restored: bool) -> Any:
        """Return the rows as outputs.

        Args:
            restored: Whether arrays are those of their framework with their own dtype. Otherwise
                they are NumPy's.
        """
        values = [_restored(column) if restored else column.values for column in self.columns]
        if self.form == "one":
            return values[0]
        names = [field.name for field in self.fields]
        return tuple(values) if self.form == "tuple" else dict(zip(names, values, strict=True))


def table_of(ids: Ids, outputs: Any) -> Table:
    """Return a batch's outputs as a table, whose arrays are copies.

    Raises:
        UsageError: The outputs have another form or another number of rows, or hold an object that
            can't be stored.
    """
    form: Form = "one"
    named: list[tuple[Any, Any]] = [(ONE, outputs)]
    exact = True
    if isinstance(outputs, Mapping):
        form, named, exact = "dict", list(outputs.items()), type(outputs) is dict
    elif isinstance(outputs, tuple):
        form, exact = "tuple", type(outputs) is tuple
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
        field = replace(column.field, exact=column.field.exact and exact)
        columns.append(column._replace(field=field))
    if not columns:
        raise UsageError(f"predictions are an empty {form}; return at least one field")
    return Table(np.array(ids, np.int64), form, tuple(columns))


def joined(tables: Sequence[Table]) -> Table:
    """Return the rows of several tables, which have the same form and names, as one.

    Raises:
        UsageError: The forms or the names differ, or a column holds bytes and other objects.
    """
    shape = [(table.form, [field.name for field in table.fields]) for table in tables]
    for other in shape:
        if other != shape[0]:
            raise UsageError(
                f"predictions of some batches are {_described(*shape[0])}, and of others "
                f"{_described(*other)}; return the same fields for every batch"
            )
    by_name = zip(*(table.columns for table in tables), strict=True)
    columns = tuple(_joined(columns) for columns in by_name)
    return Table(np.concatenate([table.ids for table in tables]), tables[0].form, columns)


def same_form(one: Table, other: Table) -> bool:
    """Return whether `joined` takes two tables."""
    names = [[field.name for field in table.fields] for table in (one, other)]
    return one.form == other.form and names[0] == names[1]


def _described(form: str, names: list[str]) -> str:
    return "one array or list" if form == "one" else f"a {form} with the fields {names}"


def _column(name: str, leaf: Any) -> Column:
    found = of_array(name, leaf)
    if found is not None:
        return Column(
            Field(name, "array", shape=found.values.shape[1:], **found.facts), found.values
        )
    if isinstance(leaf, np.ndarray) and leaf.ndim == 1:  # of strings or objects
        return _list_column(name, leaf.tolist(), exact=False)
    if not isinstance(leaf, list):
        raise UsageError(
            f"predictions have {name!r} of type {type(leaf).__name__}; they must be an array, a "
            f"list, or a tuple or dict of these; record= can make them so"
        )
    return _list_column(name, leaf, exact=True)


def _list_column(name: str, leaf: list[Any], *, exact: bool) -> Column:
    for kind, label in _ROW.items():
        if leaf and all(type(row) is kind for row in leaf):
            return Column(Field(name, label, exact=exact), leaf)  # type: ignore[arg-type]
    arrays = [of_array(name, row, rows=False) for row in leaf]
    known = [array for array in arrays if array is not None]
    if known and len(known) == len(leaf) and all(a.facts == known[0].facts for a in known):
        field = Field(name, "ragged", **known[0].facts)
        return Column(replace(field, exact=field.exact and exact), [a.values for a in known])
    values = []
    for row in leaf:
        value, same = plain(name, row)
        values.append(value)
        exact = exact and same
    return Column(Field(name, "json", exact=exact), values)


def _joined(columns: Sequence[Column]) -> Column:
    first = columns[0].field
    fields = [column.field for column in columns]
    exact = all(field.exact for field in fields)
    if all(field == first for field in fields):
        if first.kind == "array":
            return Column(first, np.concatenate([column.values for column in columns]))
        return Column(first, [row for column in columns for row in column.values])
    rows = [row for column in columns for row in column.values]
    arrays = {(f.dtype, f.stored, f.framework, f.device) for f in fields}
    if all(field.kind in ("array", "ragged") for field in fields) and len(arrays) == 1:
        stacked = [field.kind == "array" or field.stacked for field in fields]
        exact = exact and len(set(stacked)) == 1
        ragged = replace(first, kind="ragged", shape=(), stacked=stacked[0], exact=exact)
        return Column(ragged, rows)
    if all(field.kind == first.kind not in ("array", "ragged") for field in fields):
        return Column(replace(first, exact=exact), rows)
    same = {field.kind for field in fields} <= {"text", "json"}
    return _list_column(first.name, rows, exact=exact and same)


def _size(column: Column) -> int:
    values, kind = column.values, column.field.kind
    if kind == "array":
        return int(values.nbytes)
    if kind == "ragged":
        return int(sum(row.nbytes for row in values))
    if kind == "json":
        return len(json.dumps(values))
    return sum(map(len, values))


def _restored(column: Column) -> Any:
    field, values = column
    if field.kind == "array":
        return from_numpy(values, field.dtype, field.framework, field.device)
    if field.kind == "ragged" and field.stacked:
        return from_numpy(np.stack(values), field.dtype, field.framework, field.device)
    if field.kind == "ragged":
        return [from_numpy(row, field.dtype, field.framework, field.device) for row in values]
    return values
