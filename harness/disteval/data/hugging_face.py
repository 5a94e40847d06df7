"""The shards of streams of Hugging Face's datasets, which is not imported here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from disteval.arguments import is_count
from disteval.errors import UsageError

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


def count_shards(dataset: Any) -> int:
    """Return the number of shards of an ``IterableDataset``, which together hold its elements.

    Raises:
        UsageError: See `disteval.data.ShardedStream.of`.
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
    for step in _steps(getattr(dataset, "_ex_iterable", None)):
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
