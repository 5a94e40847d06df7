"""Which samples a rank evaluates, and which of them are only padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count
from disteval.errors import UsageError


class Shard(Protocol):
    """What an evaluation needs to know of one rank's share of a data set.

    Attributes:
        indices: The place in the data set of each sample this rank sees: int64, shape (N,).
        is_padding: Which of them must not be counted: bool, shape (N,); these come last.
    """

    @property
    def indices(self) -> npt.NDArray[np.int64]: ...  # noqa: D102
    @property
    def is_padding(self) -> npt.NDArray[np.bool_]: ...  # noqa: D102


@dataclass(frozen=True)
class ShardPlan:
    """One rank's share of a data set.

    With ``mode="strided"`` rank r sees samples r, r + W, r + 2W, … (as torch's
    ``DistributedSampler`` without shuffling); with ``"contiguous"`` it sees one run of neighbours.

    With ``pad=True`` every rank sees ``ceil(size / W)`` samples: the sequence of samples is
    continued by wrapping round to its start, as often as it takes. What was added is padding, and
    sits at the end of the ranks that have any. With ``pad=False`` the shards differ in length by at
    most one and together hold every sample exactly once; some are empty when W is larger than the
    data set.

    Args:
        size: Samples in the data set, from 0 up.
        world_size: Ranks that share it, from 1 up.
        rank: Whose share this is.
        mode: How samples are dealt.
        pad: Whether all shards get the same length.

    Raises:
        UsageError: A value is out of range.
    """

    size: int
    world_size: int
    rank: int
    mode: Literal["strided", "contiguous"] = "strided"
    pad: bool = False

    def __post_init__(self) -> None:
        check_count("size", self.size, 0)
        check_count("world_size", self.world_size)
        check_count("rank", self.rank, 0)
        if self.rank >= self.world_size:
            raise UsageError(f"rank {self.rank} is not in a world of {self.world_size} ranks")
        check_choice("mode", self.mode, ("strided", "contiguous"))

    def __len__(self) -> int:
        """Samples this rank sees, padding included."""
        return len(self._positions)

    @cached_property
    def indices(self) -> npt.NDArray[np.int64]:
        """The global index of each sample this rank sees, in order: int64, shape (len(self),)."""
        return self._positions % max(self.size, 1)

    @cached_property
    def is_padding(self) -> npt.NDArray[np.bool_]:
        """Which of them are padding and must not be counted: bool, shape (len(self),)."""
        return self._positions >= self.size

    @property
    def num_samples(self) -> int:
        """Samples of this rank that count."""
        return len(self) - int(self.is_padding.sum())

    @cached_property
    def _positions(self) -> npt.NDArray[np.int64]:
        # Places in the endless sequence 0..size-1, 0..size-1, …; those from `size` on are padding.
        world = self.world_size
        per_rank = -(-self.size // world)
        total = per_rank * world if self.pad else self.size
        if self.mode == "strided":
            return np.arange(self.rank, total, world, dtype=np.int64)
        start, stop = (total * r // world for r in (self.rank, self.rank + 1))
        return np.arange(start, stop, dtype=np.int64)
