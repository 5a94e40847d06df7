"""The state of all leases: which units are lent to which rank, and which are committed.

A unit is the smallest piece of work, such as one batch. See `disteval.leases.pace` for the sizes of
leases.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from disteval.leases.pace import Paces


class Lease(NamedTuple):
    """Consecutive units that are lent as one.

    Attributes:
        number: The number of the lease, which no other lease has.
        start: The first unit.
        stop: The unit after the last one.
    """

    number: int
    start: int
    stop: int

    @property
    def units(self) -> int:
        """The number of units."""
        return self.stop - self.start


class Counts(NamedTuple):
    """How far an evaluation is, in units.

    Attributes:
        units: All units but the result.
        done: The units of committed leases.
        leased: The units that ranks hold and nobody has committed.
        lost: The units that were taken back from ranks, each as often as that happened.
        repeated: The units that were evaluated once more than needed, as far as that is known.
        copies: The number of leases that were lent to a second rank.
    """

    units: int
    done: int
    leased: int
    lost: int
    repeated: int
    copies: int


@dataclass
class _Hold:
    """A lease in the hands of one rank.

    Attributes:
        lease: The lease.
        since: When it was lent.
        end: When the rank is expected to have finished it.
        done: How many of its units the rank is known to have finished.
    """

    lease: Lease
    since: float
    end: float
    done: int = 0


class Book:
    """The leases of one evaluation. It does no I/O, and its caller passes the time.

    A lease has at most two holders, and counts once, whoever commits it first. A lease that was
    taken back from a lost rank is lent again when all other units have been lent, in smaller
    leases if it is too large by then. Until it is divided, its former holder may still commit it.

    The last lease is the result: a unit of its own after the ``units`` others, which is lent when
    all of these are committed, to one rank at a time.

    Args:
        units: The number of units.
        target_seconds: How long a rank should work on one lease.
        timeout: After how many seconds without a sign of a rank its lease is taken back.
    """

    def __init__(
        self,
        units: int,
        *,
        target_seconds: float = 2.0,
        timeout: float = 60.0,
    ) -> None:
        self._leases: dict[int, Lease] = {}
        self._next = self._fresh = 0  # the next lease, and the first unit that was never lent
        self._units = self._unlent = units
        self._done = 0
        self._leased = self._lost = self._repeated = self._copied = 0
        self._timeout = timeout
        self._ranks: set[int] = set()
        self._paces = Paces(target_seconds)
        # The holders of each lease that is not committed, and of those none has, in order of loss.
        self._holders: dict[int, list[int]] = {}
        self._waiting: dict[int, Lease] = {}
        self._held: dict[int, _Hold] = {}
        # The ranks that hold a lease, in the order in which they were last heard of.
        self._seen: OrderedDict[int, float] = OrderedDict()
        # The leases that have one holder, in the order in which they are expected to end.
        self._ends: list[tuple[float, int]] = []

    @property
    def is_done(self) -> bool:
        """Whether all units and the result are committed."""
        return self._done > self._units

    @property
    def awaits_result(self) -> bool:
        """Whether all units are committed, and the result is not."""
        return self._done == self._units

    @property
    def counts(self) -> Counts:
        """How far the evaluation is."""
        lent = self._leased, self._lost, self._repeated, self._copied
        return Counts(self._units, min(self._done, self._units), *lent)

    @property
    def rates(self) -> Mapping[int, float]:
        """The units per second of each rank that has finished a lease and was not lost."""
        return self._paces.rates

    def is_wanted(self, number: int) -> bool:
        """Return whether a lease could still be committed."""
        return number in self._holders

    def ask(self, rank: int, now: float) -> Lease | None:
        """Lend a lease to a rank, which gives up the lease that it may hold.

        Returns:
            The lease, or None if there is nothing for this rank now; it may ask again after a
            lease was committed or lost.
        """
        self.give_up(rank)
        self._ranks.add(rank)
        size = self._paces.size(rank, self._unlent, len(self._ranks))
        if self.awaits_result:
            lease = self._lend_fresh(1) or self._lend_lost(1)
        else:
            lease = self._lend_fresh(size) or self._lend_lost(size) or self._copy(now)
        if lease is None:
            return None
        seconds = self._paces.seconds(rank, lease.units)
        self._held[rank] = _Hold(lease, now, now + seconds)
        self._seen[rank] = now
        holders = self._holders[lease.number]
        holders.append(rank)
        if len(holders) == 1:
            self._leased += lease.units
            insort(self._ends, (now + seconds, lease.number))
        else:
            self._copied += 1
        return lease

    def progress(self, rank: int, now: float, done: int = 0) -> None:
        """Note that a rank works on its lease, and how many of its units it has finished."""
        hold = self._held.get(rank)
        if hold is not None:  # it may have been lost before
            hold.done = done
            self._seen[rank] = now
            self._seen.move_to_end(rank)

    def hear_all(self, now: float) -> None:
        """Have no silence count that was before now."""
        for rank in self._seen:
            self._seen[rank] = now

    def commit(self, rank: int, number: int, now: float, waited: float = 0.0) -> bool:
        """Count a lease that a rank has finished; return False if it must not count.

        It does not count if another rank was first, or if it was taken back and divided.

        Args:
            rank: The rank.
            number: The number of the lease.
            now: The time.
            waited: How long the rank waited for what it reads ahead for each lease anew.
        """
        lease = self._leases[number]
        holders = self._holders.pop(number, None)
        if holders is not None:
            self._done += lease.units
            if not holders:
                del self._waiting[number]
                self._unlent -= lease.units
            else:
                self._leased -= lease.units
                if len(holders) == 1:
                    self._remove_end(holders[0])
        else:
            self._repeated += lease.units
        hold = self._held.get(rank)
        if hold is not None and hold.lease is lease:
            del self._held[rank], self._seen[rank]
            if lease.start < self._units:
                self._paces.note(rank, lease.units, now - hold.since, waited)
        return holders is not None

    def lose(self, rank: int, now: float) -> Lease | None:
        """Take back the lease of a rank that was lost, and return it if it is not committed."""
        self._ranks.discard(rank)
        self._paces.forget(rank)
        return self.give_up(rank)

    def give_up(self, rank: int) -> Lease | None:
        """Take the lease of a rank that does not work on it, and return it if nobody else does."""
        hold = self._held.get(rank)
        if hold is None:
            return None
        lease = hold.lease
        holders = self._holders.get(lease.number)
        if holders is not None and len(holders) == 1:
            self._remove_end(rank)
        del self._held[rank], self._seen[rank]
        self._repeated += hold.done
        if holders is None:
            return None
        holders.remove(rank)
        if holders:
            insort(self._ends, (self._held[holders[0]].end, lease.number))
            return None
        self._waiting[lease.number] = lease
        self._unlent += lease.units
        self._leased -= lease.units
        self._lost += lease.units
        return lease

    def expire(self, now: float) -> dict[int, range]:
        """Lose each rank that holds a lease and has been silent for too long.

        Returns:
            The units of which each of them is at one.
        """
        lost = {}
        while self._seen:
            rank, at = next(iter(self._seen.items()))
            if now - at <= self._timeout:
                break
            hold = self._held[rank]
            lost[rank] = range(hold.lease.start + hold.done, hold.lease.stop)
            self.lose(rank, now)
        return lost

    def _lend_fresh(self, size: int) -> Lease | None:
        end = self._units + self.awaits_result
        if self._fresh >= end:
            return None
        start, self._fresh = self._fresh, min(self._fresh + size, end)
        self._unlent -= self._fresh - start
        return self._new(start, self._fresh)

    def _lend_lost(self, size: int) -> Lease | None:
        """Lend the lease that was lost first, whole or its first units as a new lease."""
        if not self._waiting:
            return None
        number, lease = next(iter(self._waiting.items()))
        del self._waiting[number]
        self._unlent -= min(size, lease.units)
        if size >= lease.units:
            return lease
        del self._holders[number]
        rest = self._new(lease.start + size, lease.stop)
        self._waiting[rest.number] = rest
        return self._new(lease.start, lease.start + size)

    def _new(self, start: int, stop: int) -> Lease:
        lease = Lease(self._next, start, stop)
        self._next += 1
        self._leases[lease.number] = lease
        self._holders[lease.number] = []
        return lease

    def _copy(self, now: float) -> Lease | None:
        """Return the lease with one holder that is expected to end last.

        A lease that is overdue is expected to take as long again as it is overdue.
        """
        if not self._ends:
            return None
        overdue, left = now - self._ends[0][0], self._ends[-1][0] - now
        return self._leases[self._ends.pop(0 if overdue > left else -1)[1]]

    def _remove_end(self, rank: int) -> None:
        hold = self._held[rank]
        del self._ends[bisect_left(self._ends, (hold.end, hold.lease.number))]
