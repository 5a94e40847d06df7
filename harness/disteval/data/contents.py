"""The contents of samples: what ranks compare before the first batch, and what was evaluated.

A sample's digest has 64 bits. That of an evaluation is the sum of the digests of its samples, each
mixed with the sample's number, so it depends on neither order nor batches nor ranks. Set the
environment variable `DIGESTS` to ``off`` to save the time that digests take.
"""

from __future__ import annotations

import logging
import marshal
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_switched_on
from disteval.contract import BaseDistBackend
from disteval.coverage import GAMMA, mix
from disteval.data.digests import (
    FILE,
    IncomparableError,
    array_of,
    bytes_of,
    hash_rows,
    hash_snapshots,
    plain,
    snapshot,
)
from disteval.errors import SampleError, UsageError

DIGESTS = "DISTEVAL_DIGEST"
DRAWN = 32
"""The number of samples that every rank reads before the first batch."""

_MOST_BYTES = 64 << 20  # of samples in memory, all of which are compared; about 20 ms of arrays
_MOST_ITEMS = 20_000  # of a list, which take about 40 ms
_PART = 1024
RANDOM = "they are other ones each time that they are read"
SHARD_BITS = 40
"""The element at position p of shard s has the global number ``(s << 40) + p``."""

CONTENTS = "the contents of the samples"
"""The name of `Look.text` among the settings that ranks and earlier runs share."""

_log = logging.getLogger("disteval")

Indices = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]


def digests_of(samples: Iterable[Any]) -> Digests:
    """Return the digest of each sample: uint64 of shape (N,).

    Raises:
        IncomparableError: A sample holds an object that can't be pickled; it says which one.
    """
    found: list[bytes] = []
    try:
        # `bytes_of` says what can't be compared.
        found.extend(snapshot(sample) or bytes_of(sample) for sample in samples)
    except IncomparableError as error:
        error.place = len(found)
        raise
    return hash_snapshots(found)


def digests_of_rows(batch: Any) -> Digests:
    """Return the digest of each row of a batch: uint64 of shape (N,).

    Args:
        batch: An array or a list with a row for each sample, or a tuple or dict of these.

    Raises:
        IncomparableError: A row holds an object that can't be pickled.
        ValueError: The batch has another form, or its parts have different lengths.
    """
    if isinstance(batch, Mapping):
        fields = sorted(((repr(name), part) for name, part in batch.items()), key=lambda f: f[0])
    elif isinstance(batch, tuple):
        fields = [(str(place), part) for place, part in enumerate(batch)]
    else:
        return _digests_of_column(batch)
    found: Digests | None = None
    for name, part in fields:
        column = digests_of_rows(part) ^ _tag(name)
        if found is not None and len(found) != len(column):
            raise ValueError(f"the parts of a batch have {len(found)} and {len(column)} rows")
        found = mix(column if found is None else found * np.uint64(3) + column)
    if found is None:
        raise ValueError("the batch has no parts")
    return found


def _digests_of_column(column: Any) -> Digests:
    if isinstance(column, list):
        return digests_of(column)
    if not getattr(column, "shape", ()):
        raise ValueError(f"a value of type {type(column).__name__} has no rows")
    try:
        array = array_of(column)
    except Exception as error:  # its framework decides what may fail
        raise IncomparableError(type(column)) from error
    if array.dtype.hasobject or array.dtype.names:
        return digests_of(array.tolist())
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    found: Digests = hash_rows(array) ^ _tag(f"{column.dtype} {array.dtype} {array.shape[1:]}")
    return found


@lru_cache(maxsize=256)
def _tag(text: str) -> Any:
    return hash_snapshots([blake2b(text.encode()).digest()])[0]


def total(ids: Indices, digests: Digests) -> int:
    """Return the sum of the digests, each mixed with its sample's number, modulo 2**64."""
    return int(mix(digests ^ mix(ids.astype(np.uint64))).sum(dtype=np.uint64))


def bytes_of_list(samples: Any, some: Indices) -> float:
    """Return about how many bytes the samples of a list take, of which some are looked at.

    A list of paths is not in memory, and one of more than 20,000 samples takes too long: inf.
    """
    if len(samples) > _MOST_ITEMS:
        return math.inf
    taken = [samples[number] for number in some.tolist()]
    try:
        held = len(pickle.dumps(taken, 5)) * len(samples) / len(taken)
    except Exception:  # the objects decide what may fail
        return math.inf
    return math.inf if FILE.encode() in marshal.dumps([*map(plain, taken)]) else held


def changed(number: int) -> UsageError:
    """Return the error of a sample that changed when others were read."""
    return UsageError(
        f"sample {number} changed after it was read, while the samples after it were: the data set "
        f"or the stream gives one buffer again and again, and changes it, so a batch would hold "
        f"the last sample only; give a new array or object each time, such as buffer.copy()"
    )


class Elements:
    """The digests of all elements of a stream that a rank has read, to compare with other ranks.

    It holds the sums up to as many as 2048 elements in equal distances, which grow with the stream.

    Attributes:
        count: The number of elements.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._taken: list[bytes] = []
        self._sums: list[int] = []
        self._sum: int | None = 0
        self._distance = 1
        self._settled = 0

    @property
    def count(self) -> int:  # noqa: D102
        return self._settled + len(self._taken)

    def add(self, number: int, taken: bytes) -> None:
        """Add the next element by its snapshot, which is nothing if it can't be compared."""
        self._ids.append(number)
        self._taken.append(taken)
        if len(self._taken) == _PART:
            self._settle()

    def total(self) -> int | None:
        """Return the `total` of all elements; None if one can't be compared."""
        self._settle()
        return self._sum

    def sums(self) -> dict[int, int | None]:
        """Return the totals of some first elements, and of all, each by their number."""
        self._settle()
        numbers = range(self._distance, self._settled + 1, self._distance)
        return {**dict(zip(numbers, self._sums, strict=False)), self.count: self._sum}

    def _settle(self) -> None:
        ids, taken = np.array(self._ids, np.int64), self._taken
        self._ids, self._taken = [], []
        before, self._settled = self._settled, self._settled + len(taken)
        if self._sum is None or not all(taken):
            self._sum = None
            return
        mixed = mix(hash_snapshots(taken) ^ mix(ids.astype(np.uint64)))  # see `total`
        sums = np.cumsum(mixed, dtype=np.uint64) + np.uint64(self._sum)
        places = np.arange(before + 1, self._settled + 1)
        self._sums += sums[places % self._distance == 0].tolist()
        self._sum = int(sums[-1]) if len(sums) else self._sum
        if len(self._sums) > 2 * _PART:
            self._sums = self._sums[1::2]
            self._distance *= 2


class Look:
    """A look at some samples, or at all that are in memory, which ranks compare.

    Args:
        read: Returns the digests of the samples with some numbers, 0 where there is no such sample.
        numbers: The numbers of the samples to read, see `drawn_numbers`.
        size: The number of samples that are evaluated, from the first on.
        held: Returns how many bytes all samples take in memory, judged by some; inf if elsewhere.

    Attributes:
        numbers: The numbers of the samples that are read, int64 of shape (N,).
        why_not: Why samples can't be compared; nothing if they can.
        compared: The number of samples that are the same on all ranks; 0 before `compare`.
    """

    def __init__(
        self,
        read: Callable[[Indices], Digests],
        numbers: Indices,
        size: int = 0,
        held: Callable[[Indices], float] = lambda some: math.inf,
    ) -> None:
        self._read, self.numbers, self.compared = read, numbers, 0
        self._some = self._all = np.zeros(0, np.uint64)
        self.why_not = "" if is_switched_on(DIGESTS) else f"{DIGESTS} is off"
        if self.why_not or not len(self.numbers):
            return
        being_read = numbers
        try:
            self._some = self._all = read(being_read)
            if size > DRAWN and held(numbers) <= _MOST_BYTES:
                being_read = np.arange(size, dtype=np.int64)
                self._all = read(being_read)
        except IncomparableError as error:
            which = "a sample"
            if error.place is not None:
                which = _named(int(being_read[error.place]))
            self.why_not = f"{which} holds {error}"
        except Exception as error:  # whoever evaluates this sample tells of it
            self.why_not = _unread(error)

    @property
    def count(self) -> int:
        """The number of samples that were looked at."""
        return 0 if self.why_not else int(np.count_nonzero(self._all))

    @property
    def text(self) -> str:
        """What is equal for equal samples: a digest, and those of some samples by number.

        Nothing if they can't be compared.
        """
        if self.why_not:
            return ""
        places = np.arange(len(self._all), dtype=np.int64)
        pairs = zip(self.numbers.tolist(), self._some.tolist(), strict=True)
        some = (f"{number}:{digest:016x}" for number, digest in pairs)
        return " ".join([f"{total(places, self._all):016x}", *some])

    def compare(self, digests: Sequence[str], backend: BaseDistBackend) -> None:
        """Compare what all ranks have seen; every rank must call it.

        Args:
            digests: The `text` of each rank, as `disteval.identity.short` has it.
            backend: Carries more where these differ.

        Raises:
            UsageError: On every rank, when samples differ. It names the first that does.
        """
        if all(digests) and len(set(digests)) == 1:
            self.compared = self.count
        elif not all(digests):
            reasons = backend.all_gather_object(self.why_not)
            self.why_not = next(filter(None, reasons))
        else:
            is_whole = len(self._all) > len(self._some)
            numbers = np.arange(len(self._all)) if is_whole else self.numbers
            found = _first_difference(numbers, self._all, backend)
            self.settle()
            reasons = backend.all_gather_object(self.why_not)
            if not any(reasons):
                raise differing(*found or (None, range(backend.world_size)))
            self.why_not = next(filter(None, reasons))
        if self.why_not:
            self.refuse(self.why_not, backend.rank)

    def settle(self) -> None:
        """Read some samples again, to see whether they are the same each time."""
        if not self.why_not and len(self.numbers):
            try:
                is_other = (self._read(self.numbers) != self._some).any()
            except Exception as error:  # ranks wait for this one
                self.why_not = _unread(error)
                return
            if is_other:
                self.why_not = RANDOM

    def has(self, numbers: Indices, contents: int | None) -> bool:
        """Return whether some of the samples, read again, have the `total` that they had."""
        read = np.isin(self.numbers, numbers)
        return contents is None or contents == total(self.numbers[read], self._some[read])

    def refuse(self, why: str, rank: int) -> None:
        """Note on every rank, and say on rank 0, why samples can't be compared."""
        self.why_not, self.compared = why, 0
        if is_switched_on(DIGESTS) and rank == 0:
            _log.warning("the contents of samples are not compared: %s", why)


def difference(one: str, other: str, ranks: Sequence[int]) -> UsageError | None:
    """Return the error of samples that differ between two ranks, if they do.

    Args:
        one: The `Look.text` of one rank.
        other: That of the other one.
        ranks: The two ranks.
    """
    if not one or not other or one == other:
        return None
    pairs = zip(one.split()[1:], other.split()[1:], strict=False)
    wrong = next((int(a.partition(":")[0]) for a, b in pairs if a != b), None)
    return differing(wrong, ranks)


def differing(number: int | None, ranks: Sequence[int]) -> UsageError:
    """Return the error of a sample that is not the same on some ranks."""
    what = "one of the samples" if number is None else _named(number)
    return UsageError(
        f"{what} is not the same on ranks {' and '.join(map(str, ranks))}; give every rank the "
        f"same samples, of one revision and with the same labels, in the same order, for example "
        f"of sorted file names. Set {DIGESTS}=off if they differ in nothing that counts"
    )


def _unread(error: Exception) -> str:
    is_named = isinstance(error, SampleError)
    return str(error) if is_named else f"a sample could not be read: {type(error).__name__}"


def _named(number: int) -> str:
    shard, place = number >> SHARD_BITS, number & ((1 << SHARD_BITS) - 1)
    return f"element {place} of shard {shard}" if shard else f"sample {number}"


def _first_difference(
    numbers: Indices, digests: Digests, backend: BaseDistBackend
) -> tuple[int, tuple[int, int]] | None:
    """Return the number of the first sample that differs, and two ranks between which it does."""
    start, stop = 0, len(digests)
    while True:
        step = -(-(stop - start) // _PART) or 1
        bounds = range(start, stop, step)
        ends = [min(at + step, stop) for at in bounds]
        sums = [total(np.arange(a, b), digests[a:b]) for a, b in zip(bounds, ends, strict=True)]
        found = backend.all_gather_object(sums)
        shortest = min(map(len, found))
        pairs = ((at, r) for at in range(shortest) for r in range(1, len(found)))
        wrong = next(((at, r) for at, r in pairs if found[r][at] != found[0][at]), None)
        if wrong is None:
            return None
        start = bounds[wrong[0]]
        stop = min(start + step, stop)
        if step == 1:
            return int(numbers[start]), (0, wrong[1])


def drawn_numbers(size: int) -> Indices:
    """Return the numbers of samples that are looked at, the same for the same size."""
    if size <= DRAWN:
        return np.arange(size, dtype=np.int64)
    seeds = np.arange(size, size + 4 * DRAWN, dtype=np.uint64) * np.uint64(GAMMA)
    numbers = (mix(seeds) % np.uint64(size)).astype(np.int64)
    _, first = np.unique(numbers, return_index=True)
    return np.sort(numbers[np.sort(first)][:DRAWN])
