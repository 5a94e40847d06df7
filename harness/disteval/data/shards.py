"""Streams of shards, each of which can be opened alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_count
from disteval.data.contents import SHARD_BITS, digests_of
from disteval.data.digests import IncomparableError, digest_of
from disteval.errors import UsageError

_LOOKED_AT, _ELEMENTS = 4, 8  # so many elements of so many shards are compared

_ELEMENT_BY_ELEMENT = {
    "ExamplesIterable",
    "ArrowExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "FormattedExamplesIterable",
    "SelectColumnsIterable",
    "MappedExamplesIterable",
    "FilteredExamplesIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
}
"""The steps of a data set that do to the elements of a shard what they do to those of the whole.
After others a shard may hold other elements: ``take(10)`` takes a part of the 10 from each shard,
and the order of an unseeded ``shuffle`` differs between ranks."""


class ShardedStream:
    """A stream of several parts, the shards, each of which can be opened alone.

    Each shard is read by one rank: shard s by rank s modulo the world size. So a rank without a
    shard has nothing to do, and with few shards, or shards of very different lengths, ranks wait
    for others. With ``limit``, and only then, every rank reads the shards from the first one on.

    Args:
        shards: The name of each shard, such as a path or an address; the same on every rank, in the
            same order.
        open: A function of one name, which returns an iterable over the elements of that shard, the
            same ones whichever rank calls it. If the iterable has ``close``, it is called.

    Attributes:
        names: A text that is equal for equal names in one order. Of paths, the folder that all of
            them are in does not count, because hosts may mount it elsewhere.

    Raises:
        UsageError: There is no shard, a name occurs twice or can't be compared, or ``open`` is not
            a function.
    """

    def __init__(self, shards: Iterable[Any], open: Callable[[Any], Iterable[Any]]) -> None:  # noqa: A002
        listed = isinstance(shards, Iterable) or hasattr(shards, "__getitem__")
        if not listed or isinstance(shards, str | bytes | os.PathLike | set | frozenset):
            raise UsageError(
                f"shards has the type {type(shards).__name__}; it must be a list of the shards' "
                f"names, in the same order on every rank, such as sorted(folder.glob('*.tar'))"
            )
        if not callable(open):
            raise UsageError(
                f"open must be a function of the name of a shard that returns an iterable over its "
                f"elements, not {open!r:.200}"
            )
        self.shards: Sequence[Any] = list(shards)
        self.open = open
        if not self.shards:
            raise UsageError("shards is empty; name one shard or more, such as the files to read")
        names = _within_folder(self.shards)
        try:
            found = [*map(digest_of, names)]
        except IncomparableError as error:
            raise UsageError(
                f"shards holds {error}, so ranks can't compare the names; give texts, numbers or "
                f"paths, of which open makes what it needs"
            ) from error
        if len(set(found)) < len(found):
            again = next(at for at, name in enumerate(found) if name in found[:at])
            raise UsageError(
                f"shards has {self.shards[again]!r:.200} twice, so its elements would count twice; "
                f"name each shard once"
            )
        digest = digest_of(found).hex()[:16]
        self.names = f"from {names[0]!s:.80} to {names[-1]!s:.80} (digest {digest})"

    def some_numbers(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the first elements of some shards, which ranks compare."""
        last = len(self.shards) - 1
        shards = sorted({last * k // (_LOOKED_AT - 1) for k in range(_LOOKED_AT)})
        return np.array([(s << SHARD_BITS) + p for s in shards for p in range(_ELEMENTS)], np.int64)

    def digests(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the digests of elements at the beginning of shards; 0 where a shard is shorter."""
        found = np.zeros(len(numbers), np.uint64)
        for shard in sorted({*(numbers >> SHARD_BITS).tolist()}):
            elements = self.open(self.shards[shard])
            wanted = np.flatnonzero(numbers >> SHARD_BITS == shard)
            try:
                some = digests_of(islice(elements, len(wanted)))
            except IncomparableError as error:
                error.place = error.place and int(wanted[error.place])
                raise
            found[wanted[: len(some)]] = some
            if hasattr(elements, "close"):
                elements.close()
        return found

    @classmethod
    def of(cls, dataset: Any) -> ShardedStream:
        """Return the shards of a Hugging Face ``IterableDataset``, such as the files that it reads.

        It must be the same data set on every rank, from the same files in the same order. Given as
        it is, a data set is instead read whole by every rank, which proves that it is the same.

        Raises:
            UsageError: It is another object; it was split by ``split_dataset_by_node``; or its
                shards need not hold the elements of the whole, as after ``take`` or ``shuffle``.
        """
        count = _count_shards(dataset)
        return cls(range(count), lambda shard: dataset.shard(num_shards=count, index=shard))

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of all shards, in order."""
        for shard in self.shards:
            yield from self.open(shard)


def _within_folder(shards: Sequence[Any]) -> list[Any]:
    """Return the names of shards, paths without the folder that all paths are in."""
    names = [os.fspath(each) if isinstance(each, str | os.PathLike) else each for each in shards]
    are_paths = [isinstance(name, str) and name[:1] == "/" for name in names]
    folders = [str(Path(name).parent) for name in compress(names, are_paths)]
    folder = os.path.commonpath(folders) if folders else ""
    return [os.path.relpath(n, folder) if p else n for n, p in zip(names, are_paths, strict=True)]


def _count_shards(dataset: Any) -> int:
    """Return the number of shards of an ``IterableDataset``, which together hold its elements.

    Raises:
        UsageError: See `ShardedStream.of`.
    """
    count: Any = getattr(dataset, "num_shards", None)
    if not is_count(count) or not callable(getattr(dataset, "shard", None)):
        raise UsageError(
            f"ShardedStream.of takes an IterableDataset of Hugging Face's datasets, not a value of "
            f"type {type(dataset).__name__}; for other shards call ShardedStream(shards, open)"
        )
    if getattr(dataset, "_distributed", None) is not None:
        raise UsageError(
            "the data set is split already, by split_dataset_by_node; give the one before that, "
            "for each rank takes its share of it"
        )
    steps = list(_steps(getattr(dataset, "_ex_iterable", None)))
    if not steps:  # another class, or a release that has renamed what it keeps for itself
        raise UsageError(
            f"the steps of this {type(dataset).__name__} can't be seen, so its shards may hold "
            f"other elements than the whole; give the data set itself, which every rank then "
            f"reads whole, or ShardedStream(shards, open)"
        )
    for step in steps:
        name = type(step).__name__
        together = getattr(step, "batched", False) or getattr(step, "with_indices", False)
        if name not in _ELEMENT_BY_ELEMENT or together:
            what = f"the step {name}"
            if together:
                what = "a function of batches or of indices"
            raise UsageError(
                f"the data set has {what}, after which its shards need not hold the elements of "
                f"the whole; apply ShardedStream.of before take, skip, shuffle, batch and the "
                f"like, or give the data set itself, which every rank then reads whole"
            )
    return int(count)


def _steps(step: Any) -> Iterator[Any]:
    """Yield the steps of a data set, from the last to the sources of its elements."""
    if step is not None:
        yield step
        for source in (getattr(step, "ex_iterable", None), *getattr(step, "ex_iterables", ())):
            yield from _steps(source)
