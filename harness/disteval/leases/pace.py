"""How fast each rank is, and how many units it should be lent.

Sizes of leases follow guided self-scheduling (Polychronopoulos and Kuck, "Guided Self-Scheduling",
1987) in the variant of factoring (Flynn Hummel, Schonberg and Flynn, "Factoring", 1992): no lease
has more than half of a rank's share of the units that are left, so that leases shrink towards the
end.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TIMES_WAIT = 50
"""A lease takes so many times as long as its rank waits for the first batch, where it reads ahead:
what was read ahead ends with the lease."""


class Paces:
    """The measured speed of each rank.

    Args:
        target_seconds: How long a rank should work on one lease.
    """

    def __init__(self, target_seconds: float) -> None:
        self._target = target_seconds
        self._rates: dict[int, float] = {}
        self._waits: dict[int, float] = {}

    @property
    def rates(self) -> Mapping[int, float]:
        """The units per second of each rank that was measured."""
        return MappingProxyType(self._rates)

    def note(self, rank: int, units: int, seconds: float, waited: float) -> None:
        """Note how long a rank has had a lease, and waited for the first batch of it."""
        rate = units / max(seconds, 1e-6)
        self._rates[rank] = (rate + self._rates.get(rank, rate)) / 2
        self._waits[rank] = waited

    def forget(self, rank: int) -> None:
        """Forget a rank that was lost."""
        self._rates.pop(rank, None)
        self._waits.pop(rank, None)

    def size(self, rank: int, unlent: int, ranks: int) -> int:
        """Return how many units a rank should be lent; one if its rate is not known yet."""
        rate, wait = self._rates.get(rank), self._waits.get(rank, 0.0)
        if rate is None:
            return 1
        share = -(-unlent // (2 * ranks))
        target = max(self._target, _TIMES_WAIT * wait)
        return max(1, int(rate * wait), min(share, int(rate * target)))

    def seconds(self, rank: int, units: int) -> float:
        """Return how long a rank is expected to take."""
        rate = self._rates.get(rank)
        return self._target if rate is None else units / rate
