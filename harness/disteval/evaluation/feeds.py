"""The batches of one rank, and the proof that all ranks together saw each sample once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Counted, check_once
from disteval.data.batching import MODES, Batch, GivenBatches, Indices, Mode, Plan, plan_batches
from disteval.data.by_length import plan_by_length
from disteval.data.lengths import Length, gather_lengths, length_setting
from disteval.data.loading import load_ahead
from disteval.data.samples import Sized
from disteval.errors import UsageError
from disteval.sharding import Shard

MakeShard = Callable[[int, int, int], Shard]
"""A function of the number of samples, the world size and the rank."""


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

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("workers", self.workers, 0)
        if self.limit is not None:
            check_count("limit", self.limit, 0)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens)
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

    def natural_order(self, world_size: int) -> tuple[str, ...]:
        """Return each ``dist_collect_mode`` that puts entries in the order of the data set."""
        if self.by_length or self.shard is not None:
            return ()
        if world_size == 1:
            return ("unzip", "cat")
        return {None: ("unzip",), "strided": ("unzip",), "contiguous": ("cat",)}.get(self.mode, ())

    def settings(self) -> dict[str, Any]:
        """Return what must be the same on every rank, by name."""
        found = {name: value for name, value in vars(self).items() if name != "workers"}
        return found | {"shard": self.shard is not None, "length": length_setting(self.length)}

    def plan(self, samples: Sized, size: int, backend: BaseDistBackend) -> Plan:
        """Return the batches of this rank; every rank must call it.

        Raises:
            UsageError: On every rank, when lengths are not such.
            RankError: On every rank, when a rank could not read a length.
        """
        world, rank, fixed = backend.world_size, backend.rank, self.fixed_shape
        if self.by_length:
            lengths = gather_lengths(samples, size, self.length, backend)
            return plan_by_length(
                lengths, world, rank, self.batch_size, sort=self.sort_by_length,
                max_tokens=self.max_tokens, pad=self.pad, fixed_shape=fixed,
            )  # fmt: skip
        if self.shard is not None:
            return GivenBatches(
                checked_shard(self.shard, size, world, rank), self.batch_size, fixed
            )
        mode = self.mode or "strided"
        return plan_batches(
            size, world, rank, self.batch_size, mode=mode, pad=self.pad, fixed_shape=fixed
        )


class Feed(Protocol):
    """The batches of one rank.

    Attributes:
        total: The number of samples in all of them, padding included; None if it is not known.
        seen: The number of samples in those that were handed out.
    """

    total: int | None
    seen: int

    def __iter__(self) -> Iterator[Batch]: ...

    def note(self) -> Any:
        """Return what this rank tells the others when it has handed out its last batch."""
        ...

    def prove(
        self,
        notes: Sequence[Any],
        counted: Sequence[Certificate],
        ids: Counted,
        backend: BaseDistBackend,
    ) -> int:
        """Return the number of samples, after a proof that each was counted once.

        Raises:
            CoverageError: On every rank, when a sample was missed or counted more than once.
        """
        ...


class SizedFeed:
    """The batches of samples that have numbers.

    Args:
        samples: The samples.
        size: How many of them are evaluated.
        plan: The batches of this rank.
        workers: How many workers read ahead.
    """

    def __init__(self, samples: Sized, size: int, plan: Plan, workers: int) -> None:
        self._samples = samples
        self._length = len(samples)
        self._size = size
        self._plan = plan
        self._workers = workers
        self.total: int | None = plan.samples
        self.seen = 0

    def __iter__(self) -> Iterator[Batch]:
        read = self._samples.reader(reuse=not self._workers)
        with closing(load_ahead(self._plan, read, self._workers)) as batches:
            for picked, batch in zip(self._plan, batches, strict=True):
                self.seen += len(picked.indices)
                yield batch
        if len(self._samples) != self._length:
            raise UsageError(
                f"the data set has {len(self._samples)} samples at the end, and had "
                f"{self._length} at the beginning; do not change it while it is evaluated"
            )

    def note(self) -> Any:
        """Return nothing: the size was agreed on."""

    def prove(
        self,
        notes: Sequence[Any],
        counted: Sequence[Certificate],
        ids: Counted,
        backend: BaseDistBackend,
    ) -> int:
        """Return the size, see `Feed`."""
        check_once(counted, ids, self._size, backend)
        return self._size


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
