"""The samples that a rank evaluates, and which of them are padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from disteval.arguments import check_choice, check_count, check_flag
from disteval.errors import UsageError
from disteval.extras import when_used

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = when_used("numpy")  # many commands need no arrays


@dataclass(frozen=True)
class ShardPlan:
    """One rank's share of a data set.

    With ``mode="strided"``, rank r of W has the samples r, r + W, r + 2W, … (as torch's
    ``DistributedSampler`` without shuffling); with ``"contiguous"``, it has consecutive samples.

    With ``pad=True``, every rank has ``ceil(size / W)`` samples: after its last sample the data set
    starts again, as often as needed. These repeated samples are padding, at the end of a shard.
    With ``pad=False``, the shards differ in length by at most one and together hold every sample
    exactly once; some are empty if W is greater than ``size``.

    Args:
        size: The number of samples in the data set, from 0 up.
        world_size: The number of ranks, W, from 1 up.
        rank: The rank whose share this is.
        mode: How samples are distributed over ranks.
        pad: Whether all shards have the same length.

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
        check_flag("pad", self.pad)

    def __len__(self) -> int:
        """Return the number of samples of this rank, padding included."""
        return len(self._positions)

    @cached_property
    def indices(self) -> npt.NDArray[np.int64]:
        """The index in the data set of each sample of this rank: int64, shape (len(self),)."""
        own = self._positions
        return np.arange(own.start, own.stop, own.step, dtype=np.int64) % max(self.size, 1)

    @cached_property
    def is_padding(self) -> npt.NDArray[np.bool_]:
        """Whether each of these samples is padding: bool, shape (len(self),)."""
        return np.arange(len(self)) >= self.num_samples

    @property
    def num_samples(self) -> int:
        """The number of samples of this rank that are not padding."""
        own = self._positions
        return len(range(own.start, min(own.stop, self.size), own.step))

    @property
    def _positions(self) -> range:
        # Positions in the endless sequence 0..size-1, 0..size-1, …, where padding starts at `size`.
        world = self.world_size
        per_rank = -(-self.size // world)
        total = per_rank * world if self.pad else self.size
        if self.mode == "strided":
            return range(self.rank, total, world)
        start, stop = (total * r // world for r in (self.rank, self.rank + 1))
        return range(start, stop)
