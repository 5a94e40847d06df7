"""From samples to batches: the default ``collate``, and the checks of a collate of one's own."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import is_not
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.data.contents import changed, total
from disteval.data.digests import IncomparableError, digest_of, hash_snapshots, snapshot
from disteval.data.plan import Batch, Indices, Picked
from disteval.errors import SampleError, UsageError, describe_error

Collate = Callable[[list[Any]], Any]
"""A function of a list of samples to a batch, which keeps their order."""


@dataclass(frozen=True)
class WithIds:
    """A collate with a parameter ``ids``, which gets the number of each sample of the list."""

    collate: Callable[..., Any]

    def __call__(self, samples: list[Any], ids: Indices | None = None) -> Any:
        """Make a batch of a list of samples with these numbers."""
        return self.collate(samples, ids=ids)


_MOVED = (
    "collate changed the order of the samples, so their results would be taken for those of "
    "others; keep the order, and let predict sort and undo it, or use by_length=ByLength()"
)


def collate(samples: list[Any], field: str = "") -> Any:
    """Return a list of samples as one batch.

    - Numbers and arrays of one shape are stacked, by torch if they are tensors and otherwise by
      NumPy. A list of numbers is an array.
    - Arrays of different shapes are a list of arrays.
    - Dicts and tuples become one dict or tuple, whose fields are batches.
    - Everything else, strings among it, stays a list.

    Args:
        samples: The samples, at least one.
        field: Which part of other samples these are, for an error.

    Raises:
        UsageError: Samples have different fields.
    """
    kinds = set(map(type, samples))
    if any(issubclass(kind, Mapping | tuple) for kind in kinds):
        return _by_field(samples, field)
    if kinds <= _NUMBERS or all(issubclass(kind, _NUMBER) for kind in kinds):
        found = np.array(samples)
        is_rounded = found.dtype.kind == "f" and _is_rounded(found, samples)
        return samples if found.dtype == object or is_rounded else found
    torch = sys.modules.get("torch")
    if torch is not None and all(issubclass(kind, torch.Tensor) for kind in kinds):
        return torch.stack(samples) if len({value.shape for value in samples}) == 1 else samples
    arrays: list[npt.NDArray[Any]] | None = None
    if kinds == {list}:
        arrays = _arrays_of_lists(samples)
    elif all(hasattr(kind, "__array__") and not issubclass(kind, np.generic) for kind in kinds):
        arrays = [np.asarray(value) for value in samples]
    if arrays is None:
        return samples
    return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else arrays


_NUMBERS = {bool, int, float, complex}
_NUMBER = (*_NUMBERS, np.number, np.bool_)


def _is_rounded(found: npt.NDArray[Any], values: Any) -> bool:
    """Return whether floats were made of integers that they do not hold, as of -1 and 2**63."""
    if not (np.abs(found) >= 2**53).any():
        return False
    pairs = zip(np.array(values, dtype=object).ravel(), found.ravel().tolist(), strict=True)
    return any(isinstance(one, int | np.integer) and int(one) != made for one, made in pairs)


def _arrays_of_lists(values: list[list[Any]]) -> list[npt.NDArray[Any]] | None:
    """Return lists of numbers as arrays of one dtype; None if they hold anything else."""
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError:  # lists of lists of different lengths
        return None
    # An empty list has no dtype, and takes that of the others.
    kinds = {array.dtype for array in arrays if array.size} or {np.dtype(np.int64)}
    if any(kind.kind not in "biufc" for kind in kinds):
        return None
    arrays = [array.astype(np.result_type(*kinds), copy=False) for array in arrays]
    is_float = np.result_type(*kinds).kind == "f"
    return None if is_float and any(map(_is_rounded, arrays, values)) else arrays


def _by_field(samples: list[Any], field: str) -> Any:
    """Return a batch of samples that are dicts or tuples, as one with a batch in each field."""
    first = next(each for each in samples if isinstance(each, Mapping | tuple))
    kind: Any = Mapping if isinstance(first, Mapping) else tuple
    names = [*first] if kind is Mapping else [*range(len(first))]
    # Of dicts of one length, a name that one lacks is found when its field is taken.
    if {*map(type, samples)} != {dict} or len({*map(len, samples)}) > 1:
        for each in samples:
            is_alike = isinstance(each, kind) and len(each) == len(names)
            if not is_alike or (kind is Mapping and {*names} != {*each}):
                raise _different(first, each, field)
    parts = {}
    for name in names:
        try:
            values = [each[name] for each in samples]
        except KeyError:
            other = next(each for each in samples if name not in each)
            raise _different(first, other, field) from None
        parts[name] = collate(values, f"{field}[{name!r}]")
    if kind is Mapping:
        return parts
    return type(first)(*parts.values()) if hasattr(first, "_fields") else tuple(parts.values())


def _different(first: Any, other: Any, field: str) -> UsageError:
    where = f" in the field {field}" if field else ""
    return UsageError(
        f"samples of one batch differ{where}: one is {_described(first)}, another is "
        f"{_described(other)}; give every sample the same fields, or a collate of your own"
    )


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(value)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} fields"
    return f"a value of type {type(value).__name__}"


def first_rows(batch: Any, rows: int, count: int) -> Any:
    """Return the first samples of a batch, or of the outputs of one.

    Args:
        batch: Arrays or lists, each with a row for each sample, in dicts and tuples. A dict of a
            class of its own, such as an output of transformers, stays one.
        rows: The number of samples in the batch.
        count: The number of samples wanted.

    Raises:
        ValueError: A part of the batch is no array or list with that many rows.
    """
    if isinstance(batch, Mapping):
        fields = {key: first_rows(value, rows, count) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping) or type(batch) is dict:
            return fields
        own = copy(batch)
        for key, value in fields.items():  # outputs of transformers refuse update()
            own[key] = value
        return own
    if isinstance(batch, tuple):
        parts = [first_rows(value, rows, count) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if _rows_of(batch) != rows:
        raise ValueError(f"{type(batch).__name__} has not {rows} rows")
    return batch[:count]


def assemble(
    samples: list[Any],
    picked: Picked,
    function: Collate = collate,
    snapshots: Sequence[bytes] = (),
) -> Batch:
    """Make a batch of the samples that were picked and read.

    Args:
        samples: One sample for each number in ``picked.indices``.
        picked: The numbers of the samples.
        function: Makes a batch of a list of samples.
        snapshots: The snapshot of each sample, taken before the next one was read.

    Raises:
        UsageError: A sample has changed since its snapshot was taken.
        SampleError: The function failed.
    """
    count, rows, contents = picked.counted, picked.rows, None
    if len(snapshots):
        # A buffer that is used again has changed all samples but the last. Two of a batch are
        # looked at, and in a batch with the first sample all of them.
        end = len(samples) - 1
        for place in {0, end // 2} - {end} if picked.indices[0] else range(end):
            if snapshots[place] and snapshot(samples[place]) != snapshots[place]:
                raise changed(int(picked.indices[place]))
        if all(snapshots[:count]):
            contents = total(picked.indices[:count], hash_snapshots(snapshots[:count]))
    # Each repeat is a dict of its own, because some functions pop the fields of dicts.
    last = samples[-1]
    repeats = [dict(last) if type(last) is dict else last for _ in range(rows - len(samples))]
    filled = _collated(function, samples + repeats, picked)
    if repeats and function is not collate:  # which keeps the order
        _check_repeats(filled, rows, len(repeats) + 1)
    real = filled if count else None
    if 0 < count < rows:
        # Cut from what predict gets, because a collate that pads to the longest sample could pad
        # the samples that count to another length.
        try:
            real = first_rows(filled, rows, count)
        except ValueError:
            real = _collated(function, samples[:count], picked)
    ids, read = picked.indices[:count], len(samples)
    return Batch(ids, filled, real, rows, contents, picked.filled_up, picked.unit, read)


def _collated(collate: Collate, samples: list[Any], picked: Picked) -> Any:
    given = list(samples)
    try:
        if isinstance(collate, WithIds):
            batch = collate(given, picked.filled_up[: len(given)])
        else:
            batch = collate(given)
        is_other = len(given) == len(samples) and any(map(is_not, given, samples))
        if is_other and sorted(map(id, given)) == sorted(map(id, samples)):
            raise UsageError(_MOVED)
        if batch is None:
            raise UsageError("collate returned None; it must return the batch")
        torch = sys.modules.get("torch")
        if type(batch) is list and torch is not None and isinstance(samples[0], tuple):
            # It makes a list of the fields of tuples, and another list here holds the samples.
            return tuple(batch) if collate is torch.utils.data.default_collate else batch
        return batch
    except Exception as error:
        first, *others = picked.indices.tolist()
        more = ", …" if len(others) > 5 else ""
        beside = f" with {', '.join(map(str, others[:5]))}{more}" if others else ""
        what = f"could not be collated{beside}: {describe_error(error)}{_uneven(samples)}"
        raise SampleError(first, what) from error


def _check_repeats(batch: Any, rows: int, times: int) -> None:
    """Refuse a batch whose last sample fills it up, if the repeats are elsewhere.

    Each field of a sample may be random or depend on its place, but then no row is there so often.

    Raises:
        UsageError: The last rows differ, and as many other rows are equal.
    """
    fields = list(_fields(batch, rows))
    try:
        digests = [digest_of([field[row] for field in fields]) for row in range(rows)]
    except IncomparableError:  # objects that nobody can tell apart
        return
    if len(set(digests[-times:])) > 1 and max(Counter(digests).values()) >= times:
        raise UsageError(_MOVED)


def _fields(batch: Any, rows: int) -> Iterator[Any]:
    """Yield each array or list of a batch that has a row for each sample."""
    if isinstance(batch, Mapping | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _fields(part, rows)
    elif _rows_of(batch) == rows:
        yield batch


def _rows_of(part: Any) -> int | None:
    shape = getattr(part, "shape", None)
    return shape[0] if shape else len(part) if isinstance(part, list) else None


def _uneven(values: list[Any], field: str = "") -> str:
    """Return the first field whose shapes differ, as the end of a message; else nothing."""
    first = values[0]
    if isinstance(first, Mapping | tuple):
        names = list(first) if isinstance(first, Mapping) else range(len(first))
        try:
            parts = {name: [value[name] for value in values] for name in names}
        except (KeyError, IndexError, TypeError):  # samples of several kinds
            return ""
        found = (_uneven(part, f"{field}[{name!r}]") for name, part in parts.items())
        return next(filter(None, found), "")
    shapes = [tuple(value.shape) for value in values if hasattr(value, "shape")]
    others = [shape for shape in shapes if shape != shapes[0]]
    if not others:
        return ""
    where = f"the field {field} has" if field else "samples have"
    return f"; {where} the shapes {shapes[0]} and {others[0]} in this batch; let collate pad to one"
