"""How samples are distributed over ranks and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from disteval.arguments import check_count, check_flag
from disteval.contract import BaseDistBackend
from disteval.data.batching import WholeBatches
from disteval.data.by_length import LengthBatches, plan_by_length
from disteval.data.lengths import Length, gather_lengths, length_setting
from disteval.data.samples import Sized
from disteval.data.streams import Stream
from disteval.data.windows import ByLength

_OWN = ("workers", "predict")  # which may differ from rank to rank


@dataclass(frozen=True)
class Dealing:
    """How samples are distributed over ranks and batches; see `disteval.evaluate`.

    Raises:
        UsageError: A value is of another kind or out of range.
    """

    batch_size: int = 256
    fixed_shape: bool = True
    pad: bool = True
    max_tokens: int | None = None
    length: Length = None
    sort_by_length: bool = False
    workers: int = 0
    limit: int | None = None
    predict: Any = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("workers", self.workers, 0)
        for flag in ("fixed_shape", "pad", "sort_by_length"):
            check_flag(flag, getattr(self, flag))
        if self.limit is not None:
            check_count("limit", self.limit, 0)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens)
        check_count("what slice_rows of predict returns", self.step)

    @property
    def by_length(self) -> bool:
        """Whether batches are made by the lengths of samples."""
        return self.sort_by_length or self.max_tokens is not None

    @property
    def step(self) -> int:
        """The number of rows of which each batch has a multiple; 1 if no batch is filled up."""
        if not self.fixed_shape or self.max_tokens is not None:
            return 1
        slice_rows = getattr(self.predict, "slice_rows", None)
        return slice_rows(self.batch_size) if callable(slice_rows) else self.batch_size

    def limited(self, size: int) -> int:
        """Return how many of so many samples are evaluated."""
        return size if self.limit is None else min(size, self.limit)

    def settings(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by name."""
        found = {name: value for name, value in vars(self).items() if name not in _OWN}
        return found | {"length": length_setting(self.length)}

    def stream(self, samples: Any, backend: BaseDistBackend, parts: range | None = None) -> Stream:
        """Return this rank's share of a stream, or some of its shards.

        Raises:
            UsageError: A value needs samples that have a length.
        """
        by_length = None
        if self.by_length:
            by_length = ByLength(self.length, self.sort_by_length, self.max_tokens)
        world, rank = backend.world_size, backend.rank
        return Stream(samples, rank, world, self.batch_size, self.limit, by_length, parts)

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
        if self.by_length:
            lengths = gather_lengths(samples, size, self.length, backend)
            return plan_by_length(
                lengths, world, rank, self.batch_size, sort=self.sort_by_length,
                max_tokens=self.max_tokens, pad=self.pad, step=self.step,
            )  # fmt: skip
        return WholeBatches(size, world, rank, self.batch_size, self.step, self.pad)
