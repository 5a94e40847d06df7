"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from disteval.errors import UsageError
from disteval.plain import unpacked

if TYPE_CHECKING:
    from disteval.world.channel.messages import LeaseReport


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, which is the same on every rank except for the times.

    Attributes:
        metrics: Each metric's result, by the metric's name.
        size: The number of samples, each of which was counted once.
        padded: The number of samples that were computed as padding and not counted.
        world_size: The number of ranks.
        batch_size: The most samples in a call of ``predict``.
        seconds: The time from the first batch, when all ranks were ready, to the last result.
        stored: The number of samples whose outputs an interrupted evaluation had left; their
            results are part of the metrics.
        since: When the first of the runs began that have left these, such as
            ``2026-11-26 18:32 UTC``; nothing without them.
        leases: What happened to leases, see `disteval.leases.LeaseReport`; None without leases.
        coverage: ``exact``: each sample was counted once, and its contents are those that all
            ranks hold, because one process read all of them or ranks compared all. ``by index``:
            each number was counted once, and contents were compared in part or not at all, or
            samples or outputs are random, see ``repeatable``.
        compared: The number of samples whose contents ranks compared.
        digest: 16 hexadecimal digits about the contents of all samples that were evaluated. They
            depend on neither ranks nor batches nor order. None if contents can't be compared.
        difference: The largest difference between what ranks computed for the same few samples,
            before the first batch: 0.0 if they were equal. None if nothing was compared, as on one
            rank, of a stream, or where ``predict`` draws random numbers.
        repeatable: Whether every rank read and computed the same for its first samples twice. None
            if that could not be tried, or if ``DISTEVAL_CANARY`` is off.
    """

    metrics: dict[str, Any]
    size: int
    padded: int
    world_size: int
    batch_size: int
    seconds: float
    stored: int = 0
    since: str = ""
    leases: LeaseReport | None = None
    coverage: Literal["exact", "by index"] = "by index"
    compared: int = 0
    digest: str | None = None
    difference: float | None = None
    repeatable: bool | None = None

    @property
    def samples_per_second(self) -> float:
        """The number of samples that were not stored divided by the seconds."""
        return (self.size - self.stored) / self.seconds


def read_result(data: bytes) -> Evaluation:
    """Return the result that a rank, or an earlier run, has packed.

    Raises:
        UsageError: It has values of a class that this run does not know.
    """
    try:
        found: Evaluation = unpacked(data)
    except ValueError as error:
        raise UsageError(
            f"the result can't be read: {error}; import that class where the task is made, or "
            f"remove the ledger, if this is the result of an earlier run"
        ) from error
    return found
