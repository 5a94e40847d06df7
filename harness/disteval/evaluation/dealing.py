"""How samples are distributed over ranks and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from disteval.arguments import check_count, check_flag
from disteval.contract import BaseDistBackend
from disteval.data.batching import WholeBatches
from disteval.data.by_length import LengthBatches, plan_by_length
from disteval.data.length_of import ByLength
from disteval.data.lengths import gather_lengths
from disteval.data.samples import Sized
from disteval.data.streams import Stream
from disteval.errors import UsageError

_OWN = ("workers", "predict")  # which may differ from rank to rank


@dataclass(frozen=True)
class Dealing:
    """How samples are distributed over ranks and batches; see `disteval.evaluate`.

    Raises:
        UsageError: A value is of another kind or out of range.
    """

    batch_size: int = 256
    fixed_shape: bool = True
    even_calls: bool | None = None
    by_length: ByLength | None = None
    workers: int = 0
    limit: int | None = None
    predict: Any = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("workers", self.workers, 0)
        check_flag("fixed_shape", self.fixed_shape)
        if self.even_calls is not None:
            check_flag("even_calls", self.even_calls)
        if self.limit is not None:
            check_count("limit", self.limit, 0)
        if not isinstance(self.by_length, ByLength | None):
            raise UsageError(
                f"by_length must be a disteval.ByLength, such as ByLength(), not {self.by_length!r}"
            )
        check_count("what slice_rows of predict returns", self.step)

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a batch, see `ByLength`; None if there is no limit."""
        return None if self.by_length is None else self.by_length.max_tokens

    @property
    def step(self) -> int:
        """The number of rows of which each batch has a multiple; 1 if no batch is filled up."""
        if not self.fixed_shape or self.max_tokens is not None:
            return 1
        slice_rows = getattr(self.predict, "slice_rows", None)
        return slice_rows(self.batch_size) if callable(slice_rows) else self.batch_size

    @property
    def pad(self) -> bool:
        """Whether ranks call ``predict`` equally often, where that costs no message."""
        return self.even_calls is not False

    def check_even(self, what: str, is_uneven: bool) -> None:
        """Raise UsageError if every rank has to call ``predict`` equally often, and can't."""
        if self.even_calls and is_uneven:
            raise UsageError(
                f"even_calls=True can't be kept for {what}, of which no rank knows how many "
                f"batches another has; leave it out, or make a list of the samples"
            )

    def limited(self, size: int) -> int:
        """Return how many of so many samples are evaluated."""
        return size if self.limit is None else min(size, self.limit)

    def settings(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by name."""
        found = {name: value for name, value in vars(self).items() if name not in _OWN}
        return found | {"by_length": str(self.by_length)}

    def stream(self, samples: Any, backend: BaseDistBackend, parts: range | None = None) -> Stream:
        """Return this rank's share of a stream, or some of its shards.

        Raises:
            UsageError: A value needs samples that have a length.
        """
        if self.by_length is not None:
            self.by_length.measure()
            self.check_even("batches of a stream that are made by length", backend.world_size > 1)
        world, rank = backend.world_size, backend.rank
        stream = Stream(samples, rank, world, self.batch_size, self.limit, self.by_length, parts)
        self.check_even("shards", stream.is_uneven)
        return stream

    def plan(
        self, samples: Sized, size: int, backend: BaseDistBackend, *, whole: bool = False
    ) -> WholeBatches | LengthBatches:
        """Return the batches of this rank; every rank must call it.

        Args:
            samples: The samples.
            size: The number of samples to evaluate.
            backend: Joins the ranks, which may have to read lengths together.
            whole: Whether these are the batches of a rank that is alone, on every rank.

        Raises:
            UsageError: On every rank, when lengths are not such.
            RankError: On every rank, when a rank could not read a length.
        """
        world, rank = (1, 0) if whole else (backend.world_size, backend.rank)
        if (by := self.by_length) is not None:
            lengths = gather_lengths(samples, size, by.length, backend)
            return plan_by_length(
                lengths, world, rank, self.batch_size, sort=by.sort,
                max_tokens=by.max_tokens, pad=self.pad, step=self.step,
            )  # fmt: skip
        return WholeBatches(size, world, rank, self.batch_size, self.step, self.pad)
