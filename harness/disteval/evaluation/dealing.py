"""How samples are distributed over ranks and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count, check_flag
from disteval.contract import BaseDistBackend
from disteval.data.batching import MODES, GivenBatches, Indices, Mode, Plan, plan_batches
from disteval.data.by_length import plan_by_length
from disteval.data.lengths import Length, gather_lengths, length_setting
from disteval.data.samples import Sized
from disteval.data.streams import Stream
from disteval.data.windows import ByLength
from disteval.errors import UsageError
from disteval.sharding import Shard

MakeShard = Callable[[int, int, int], Shard]
"""A function of the number of samples, the world size and the rank."""


_OWN = ("workers", "predict")  # which may differ from rank to rank


@dataclass(frozen=True)
class Dealing:
    """How samples are distributed over ranks and batches; see `disteval.evaluate`.

    Raises:
        UsageError: A value is of another kind or out of range, or values exclude each other.
    """

    batch_size: int = 256
    mode: Mode | None = None
    fixed_shape: bool = True
    pad: bool = True
    shard: MakeShard | None = None
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
        if self.mode is not None:
            check_choice("mode", self.mode, MODES)
        if self.shard is not None and not callable(self.shard):
            raise UsageError(f"shard must be a function, not {self.shard!r}")
        chosen = f"mode={self.mode!r}" if self.mode not in (None, "batches") else None
        chosen = "shard" if self.shard is not None else chosen
        if self.by_length and chosen:
            raise UsageError(
                f"{chosen} was given together with sort_by_length or max_tokens, which distribute "
                f"whole batches over ranks; leave one of them out"
            )
        if self.shard is not None and self.mode is not None:
            raise UsageError(f"shard replaces mode={self.mode!r}; leave one of them out")

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

    def natural_order(self, world_size: int, by_shards: bool = False) -> tuple[str, ...]:
        """Return each ``dist_collect_mode`` that puts entries in the order of the data set.

        Args:
            world_size: The number of ranks.
            by_shards: Whether each rank reads shards of a stream.
        """
        if self.by_length or self.shard is not None or (by_shards and world_size > 1):
            return ()
        if world_size == 1:
            return ("unzip", "cat")
        return {None: ("unzip",), "strided": ("unzip",), "contiguous": ("cat",)}.get(self.mode, ())

    def limited(self, size: int) -> int:
        """Return how many of so many samples are evaluated."""
        return size if self.limit is None else min(size, self.limit)

    def settings(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by name."""
        found = {name: value for name, value in vars(self).items() if name not in _OWN}
        return found | {"shard": self.shard is not None, "length": length_setting(self.length)}

    def stream(self, samples: Any, backend: BaseDistBackend, parts: range | None = None) -> Stream:
        """Return this rank's share of a stream, or some of its shards.

        Raises:
            UsageError: A value needs samples that have a length.
        """
        if self.shard is not None:
            raise UsageError(
                "shard needs samples that have a length, and a stream has none; leave it out, or "
                "make a list of the samples"
            )
        by_length = None
        if self.by_length:
            by_length = ByLength(self.length, self.sort_by_length, self.max_tokens)
        world, rank, mode = backend.world_size, backend.rank, self.mode or "strided"
        return Stream(samples, rank, world, self.batch_size, mode, self.limit, by_length, parts)

    def plan(
        self, samples: Sized, size: int, backend: BaseDistBackend, *, whole: bool = False
    ) -> Plan:
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
        if self.shard is not None:
            return GivenBatches(
                checked_shard(self.shard, size, world, rank), self.batch_size, self.step
            )
        mode = self.mode or "strided"
        return plan_batches(
            size, world, rank, self.batch_size, mode=mode, pad=self.pad, step=self.step
        )


class _Given(NamedTuple):
    """A user's `Shard`, whose arrays have been checked."""

    indices: Indices
    is_padding: npt.NDArray[np.bool_]


def checked_shard(
    make: Callable[[int, int, int], Shard], size: int, world: int, rank: int
) -> Shard:
    """Return the shard that a user's function makes, after its arrays were checked."""
    shard = make(size, world, rank)
    if not (hasattr(shard, "indices") and hasattr(shard, "is_padding")):
        raise UsageError(
            f"the function shard returned a {type(shard).__name__}; it must return an object with "
            f"indices and is_padding, such as a disteval.ShardPlan"
        )
    indices, is_padding = np.asarray(shard.indices), np.asarray(shard.is_padding)
    if indices.ndim != 1 or indices.shape != is_padding.shape:
        raise UsageError(
            f"a shard has indices of shape {indices.shape} and is_padding of shape "
            f"{is_padding.shape}; both must have shape (N,)"
        )
    if len(indices) and (indices.dtype.kind not in "iu" or is_padding.dtype != np.bool_):
        raise UsageError(
            f"a shard has indices of {indices.dtype} and is_padding of {is_padding.dtype}; they "
            f"must be integers and truth values"
        )
    wrong = indices[(indices < 0) | (indices >= size)]
    if len(wrong):
        raise UsageError(
            f"a shard has the index {wrong[0]}, and the data set has {size} samples, whose "
            f"indices are 0 to {size - 1}"
        )
    if (is_padding[:-1] > is_padding[1:]).any():
        raise UsageError("a shard's padding must come after all samples that count")
    return _Given(indices.astype(np.int64), is_padding.astype(np.bool_))
