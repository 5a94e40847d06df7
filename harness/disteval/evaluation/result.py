"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from disteval.leases.messages import LeaseReport


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, which is the same on every rank except for the times.

    Attributes:
        metrics: Each metric's result, by the metric's name.
        size: The number of samples in the data set.
        evaluated: The number of samples that were counted, over all ranks.
        padded: The number of samples that were computed as padding and not counted.
        world_size: The number of ranks.
        batch_size: The most samples in a call of ``predict``.
        seconds: The time from the first batch, when all ranks were ready, to the last result.
        stored: The number of samples whose outputs an interrupted evaluation had left; their
            results are part of the metrics.
        leases: What happened to leases, see `disteval.leases.LeaseReport`; None without leases.
        coverage: ``exact``: it was proved that every sample was counted once.
    """

    metrics: dict[str, Any]
    size: int
    evaluated: int
    padded: int
    world_size: int
    batch_size: int
    seconds: float
    stored: int = 0
    leases: LeaseReport | None = None
    coverage: Literal["exact"] = "exact"

    @property
    def samples_per_second(self) -> float:
        """The number of samples that were not stored divided by the seconds."""
        return (self.evaluated - self.stored) / self.seconds
