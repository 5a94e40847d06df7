"""Reading the samples of a batch from a data set by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from disteval.data.collate import Collate, assemble, collate
from disteval.data.contents import is_on, noted
from disteval.data.plan import Batch, Indices, Picked
from disteval.errors import SampleError, UsageError, describe_error


@dataclass(frozen=True)
class IndexedReader:
    """Reads batches from anything with ``__getitem__``; it can be pickled if its parts can.

    Args:
        samples: The data set. Its ``__getitems__`` is used where there is one.
        collate: Makes a batch of a list of samples.
    """

    samples: Any
    collate: Collate = collate

    def __call__(self, picked: Picked) -> Batch:
        """Read a batch."""
        taken: list[bytes] = []
        samples = fetch(self.samples, picked.indices, taken if is_on() else None)
        return assemble(samples, picked, self.collate, taken)


def fetch(samples: Any, indices: Indices, taken: list[bytes] | None = None) -> list[Any]:
    """Return the samples with these numbers.

    Args:
        samples: The data set.
        indices: The numbers.
        taken: Gets the snapshot of each sample, made before the next one is read; or None.

    Raises:
        SampleError: A sample could not be read; its number is named.
        UsageError: ``__getitems__`` returned another number of samples.
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
            taken += map(noted, found)
        return found
    read: list[Any] = []
    for number in numbers:
        try:
            read.append(samples[number])
            if taken is not None:
                taken.append(noted(read[-1]))
        except Exception as error:
            raise SampleError(number, f"could not be read: {describe_error(error)}") from error
    return read
