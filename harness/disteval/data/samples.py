"""The kinds of samples that can be evaluated, and how a batch is read from each of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from disteval.arguments import is_switched_on
from disteval.data.base import ArrayDataset
from disteval.data.collate import Collate, assemble
from disteval.data.collate import collate as default_collate
from disteval.data.contents import (
    DIGESTS,
    Digests,
    bytes_of_list,
    changed,
    digests_of,
    digests_of_rows,
    total,
)
from disteval.data.digests import IncomparableError, snapshot
from disteval.data.plan import Batch, Indices, Picked
from disteval.errors import SampleError, UsageError, describe_error


def open_samples(samples: Any, collate: Collate | None = None) -> Sized | None:
    """Return samples of any kind in the form in which they are read.

    Args:
        samples: Arrays, anything with ``__len__`` and ``__getitem__``, or a stream.
        collate: A function that makes a batch of a list of samples. None takes arrays by columns,
            and collates other samples by `disteval.data.collate`.

    Returns:
        The samples; None if they are a stream, which has no length or can't be indexed: a function
        without arguments that returns an iterable, every iterator, and torch's ``IterableDataset``,
        although it inherits a ``__getitem__``.

    Raises:
        UsageError: The value is of another kind, or its arrays have different lengths.
    """
    if isinstance(samples, str | bytes):
        raise UsageError(
            f"samples is a {type(samples).__name__}; give the samples, such as an open file whose "
            f"lines are samples"
        )
    if isinstance(samples, type) and hasattr(samples, "__getitem__"):
        raise UsageError(
            f"samples is the class {samples.__name__}; give an instance, such as "
            f"{samples.__name__}()"
        )
    if hasattr(samples, "columns") and hasattr(samples, "to_numpy"):
        raise UsageError(
            f"samples is a {type(samples).__name__}, whose index is not a sample's number; give a "
            f"dict of its columns, {{name: samples[name] for name in samples.columns}}"
        )
    if isinstance(samples, ArrayDataset):
        samples = samples.images, samples.labels
    if isinstance(samples, tuple | Mapping) or _is_array(samples):
        columns = Columns(samples)
        return columns if collate is None else Items(columns, collate)
    torch, has_index = sys.modules.get("torch"), hasattr(samples, "__getitem__")
    if torch is not None and isinstance(samples, torch.utils.data.IterableDataset):
        return None
    if has_index and hasattr(samples, "__len__"):
        return Items(samples, collate or default_collate)
    if has_index or hasattr(samples, "__iter__") or callable(samples):
        return None
    raise UsageError(
        f"samples has the type {type(samples).__name__}; give arrays, anything with a length "
        f"and an index, such as a list or a torch Dataset, or anything to iterate over"
    )


class Columns:
    """An array, or a tuple or dict of arrays of equal length; a sample is a row of each.

    Args:
        columns: Arrays of NumPy or a framework, and lists.

    Raises:
        UsageError: A column is of another kind, or the lengths differ.
    """

    def __init__(self, columns: Any) -> None:
        named = _named(columns)
        self._columns = {name: _column(name, column) for name, column in named.items()}
        lengths = {
            name: len(column) if isinstance(column, list) else column.shape[0]  # of a sparse one
            for name, column in self._columns.items()
        }
        if len(set(lengths.values())) != 1:
            raise UsageError(
                f"samples is a {type(columns).__name__} of arrays with the lengths {lengths}; "
                f"give arrays of one length, or a list if it holds the samples themselves"
            )
        self._size = next(iter(lengths.values()))
        self._kind = type(columns)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._form([column[index] for column in self._columns.values()])

    def column(self, name: str) -> Any:
        """Return a field of all samples, or None if there is no such field."""
        return self._columns.get(name)

    def digests(self, numbers: Indices) -> Digests:
        """Return the digests of some rows, see `disteval.data.contents.Look`."""
        return digests_of_rows(self._form([_take(c, numbers) for c in self._columns.values()]))

    def bytes_held(self, some: Indices) -> float:
        """Return how many bytes all rows take in memory, judged by some."""
        return sum(_bytes_held(column, some) for column in self._columns.values())

    def __call__(self, picked: Picked) -> Batch:
        """Read a batch: take its rows of every array."""
        count, numbers = picked.counted, picked.filled_up
        taken = [_take(column, numbers) for column in self._columns.values()]
        filled = self._form(taken)
        real = filled if count == picked.rows else self._form([part[:count] for part in taken])
        ids = picked.indices[:count]
        contents = None
        if len(ids) and is_switched_on(DIGESTS):
            with suppress(IncomparableError):
                contents = total(ids, digests_of_rows(real))
        samples = len(picked.indices)
        return Batch(ids, filled, real, picked.rows, contents, numbers, picked.unit, samples)

    def _form(self, fields: list[Any]) -> Any:
        """Return fields as a tuple or a dict, or as the one array that they are."""
        if issubclass(self._kind, Mapping):
            return dict(zip(self._columns, fields, strict=True))
        return tuple(fields) if issubclass(self._kind, tuple) else fields[0]


class Items:
    """Anything with a length and an index, of which a rank reads only its own samples.

    It can be pickled if its parts can.

    Args:
        items: The samples, which stay an attribute; ``__getitems__`` is used where there is one.
            Or `Columns`, for a collate of one's own.
        collate: Makes a batch of a list of samples.
    """

    def __init__(self, items: Any, collate: Collate = default_collate) -> None:
        self.items = items
        self._collate = collate

    def __call__(self, picked: Picked) -> Batch:
        """Read and collate a batch."""
        taken: list[bytes] = []
        samples = fetch(self.items, picked.indices, taken if is_switched_on(DIGESTS) else None)
        return assemble(samples, picked, self._collate, taken)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def digests(self, numbers: Indices) -> Digests:
        """Return the digests of some samples, see `disteval.data.contents.Look`."""
        # One after another, because the next one may be read into the same memory.
        return digests_of(fetch(self.items, numbers[i : i + 1])[0] for i in range(len(numbers)))

    def bytes_held(self, some: Indices) -> float:
        """Return how many bytes all samples take in memory, judged by some; inf if elsewhere."""
        items = self.items
        if isinstance(items, Columns):  # whose samples are made one by one
            return max(items.bytes_held(some), bytes_of_list(items, some))
        return _bytes_held(items, some)


Sized = Columns | Items
"""Samples that have numbers, from 0 up to their length; it reads the batches that were picked."""


def fetch(samples: Any, indices: Indices, taken: list[bytes] | None = None) -> list[Any]:
    """Return the samples with these numbers.

    Args:
        samples: The data set.
        indices: The numbers.
        taken: Gets the snapshot of each sample, made before the next one is read; or None.

    Raises:
        SampleError: A sample could not be read; its number is named.
        UsageError: ``__getitems__`` returned another number of samples, or one buffer for all.
    """
    numbers: Sequence[int] = indices.tolist()
    found: Any = None
    if (many := getattr(samples, "__getitems__", None)) is not None:
        with suppress(Exception):  # one after the other, the sample that can't be read is named
            found = many(numbers)
    if isinstance(found, list):  # some data sets return a whole batch, in a form of their own
        if len(found) != len(numbers):
            raise UsageError(
                f"__getitems__ of the {type(samples).__name__} was asked for {len(numbers)} "
                f"samples and returned {len(found)}; it must return a list with one sample for "
                f"each index"
            )
        if taken is not None:
            taken += map(snapshot, found)
            if 0 in numbers and len(found) > 1:
                _check_buffers(samples, indices, found)
        return found
    read: list[Any] = []
    number = -1
    try:
        for number in numbers:
            read.append(sample := samples[number])
            if taken is not None:
                taken.append(snapshot(sample))
    except Exception as error:
        raise SampleError(number, f"could not be read: {describe_error(error)}") from error
    return read


def _check_buffers(samples: Any, indices: Indices, found: Sequence[Any]) -> None:
    """Refuse samples of which a field is one buffer, though they were read at once.

    It is equal in all of them, and another one when a sample is read alone.
    """
    columns = [[*map(snapshot, column)] for column in zip(*map(_fields, found), strict=False)]
    equal = [(at, column[0]) for at, column in enumerate(columns) if len({*column}) == 1]
    for place in (0, 1) if equal else ():
        alone = dict(enumerate(_fields(fetch(samples, indices[place : place + 1])[0])))
        if any(at in alone and snapshot(alone[at]) != before for at, before in equal):
            raise changed(int(indices[place]))


def _fields(sample: Any) -> Sequence[Any]:
    if isinstance(sample, Mapping):
        return [*sample.values()]
    return sample if isinstance(sample, tuple) else (sample,)


def _bytes_held(column: Any, some: Indices) -> float:
    """Return how many bytes an array or a list takes in memory; inf of anything else."""
    if type(column) is list:
        return bytes_of_list(column, some)
    is_memory = isinstance(column, np.ndarray) and not isinstance(column, np.memmap)
    return column.nbytes if is_memory and not column.dtype.hasobject else math.inf


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__getitem__")


def _named(columns: Any) -> dict[Any, Any]:
    if isinstance(columns, Mapping):
        found = dict(columns)
    else:
        found = dict(enumerate(columns)) if isinstance(columns, tuple) else {"samples": columns}
    if not found:
        raise UsageError(
            f"samples is an empty {type(columns).__name__}; give a {type(columns).__name__} of "
            f"arrays, or a list if it holds the samples themselves"
        )
    return found


def _column(name: Any, column: Any) -> Any:
    if hasattr(column, "to_numpy"):  # a Series, whose index may be other than 0, 1, 2, …
        column = column.to_numpy()
    if isinstance(column, list):
        return column
    if not _is_array(column) or not column.shape:
        raise UsageError(
            f"the column {name!r} of samples has the type {type(column).__name__}; it must be an "
            f"array with one axis or more, or a list; a list of samples, not a tuple or a dict, "
            f"holds the samples themselves"
        )
    if _is_of_mlx(column):
        _evaluated(column)
    tensorflow = sys.modules.get("tensorflow")
    return column.numpy() if tensorflow and tensorflow.is_tensor(column) else column


def _take(column: Any, indices: Indices) -> Any:
    if isinstance(column, np.ndarray):
        return np.take(column, indices, axis=0)
    if isinstance(column, list):
        return [column[i] for i in indices.tolist()]
    if type(column).__module__.partition(".")[0] in ("h5py", "zarr"):
        # On disk, and they take neither repeated indices nor ones that fall.
        return np.stack([np.asarray(column[i]) for i in indices.tolist()])
    if _is_of_mlx(column):  # which takes no index of NumPy's
        return _evaluated(column[sys.modules["mlx.core"].array(indices)])
    return column[indices]


def _is_of_mlx(column: Any) -> bool:
    return type(column).__module__.partition(".")[0] == "mlx"


def _evaluated(array: Any) -> Any:
    """Return an array of MLX once it is computed, which only the thread that made it can do."""
    sys.modules["mlx.core"].eval(array)
    return array
