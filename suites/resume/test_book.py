"""However ranks ask, commit, freeze and die, every unit is committed exactly once."""

import pytest
from disteval.leases import Book, Lease
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

TARGET, TIMEOUT = 2.0, 60.0
RANKS = st.integers(0, 5)


class Leases(RuleBasedStateMachine):
    """A book, and a model of what its ranks were lent and what was committed."""

    @initialize(units=st.integers(0, 8) | st.integers(0, 100))
    def begin(self, units: int) -> None:
        self.book = Book(units, target_seconds=TARGET, timeout=TIMEOUT)
        self.units, self.now = units, 0.0
        self.committed: set[int] = set()
        self.held: dict[int, Lease] = {}
        self.seen: dict[int, float] = {}
        self.alive: set[int] = set()
        self.lent: list[tuple[int, Lease]] = []

    def unlent(self) -> int:
        """Return how many units nobody holds and nobody has committed."""
        held = {unit for lease in self.held.values() for unit in range(lease.start, lease.stop)}
        begun = len(self.committed) >= self.units  # with the result, which is lent when it is alone
        return self.units + begun - len(self.committed | held)

    @rule(rank=RANKS)
    def ask(self, rank: int) -> None:
        self.held.pop(rank, None)
        self.alive.add(rank)
        unlent, rate = self.unlent(), self.book.rates.get(rank)
        others = list(self.held.values())
        lease = self.book.ask(rank, self.now)
        if lease is None:
            open_ = [held for held in others if self.book.is_wanted(held.number)]
            assert unlent == 0, "a rank stays idle while units wait"
            once = [held for held in open_ if open_.count(held) == 1 and held.start < self.units]
            assert not once, "a rank could hold a copy"
            return
        assert 0 <= lease.start < lease.stop <= self.units + 1
        if lease.stop > self.units:
            assert lease.units == 1, "the result is lent with other units"
            assert self.committed == {*range(self.units)}, "the result is lent too early"
            assert lease not in others, "the result is copied"
        assert not self.committed & {*range(lease.start, lease.stop)}
        if unlent:
            share = -(-unlent // (2 * len(self.alive)))
            most = 1 if rate is None else max(1, min(share, int(rate * TARGET)))
            assert lease.units <= most
            assert lease not in others, "a copy is lent while units wait"
        assert others.count(lease) <= 1, "a lease has three holders"
        self.held[rank], self.seen[rank] = lease, self.now
        self.lent.append((rank, lease))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.held)))
        self.book.progress(rank, self.now, data.draw(st.integers(0, self.held[rank].units)))
        self.seen[rank] = self.now

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.held)))
        self.commit(rank, self.held[rank])

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def finish_late(self, data: st.DataObject) -> None:
        """A rank commits any lease that it was ever lent, as one that was frozen does."""
        self.commit(*data.draw(st.sampled_from(self.lent)))

    def commit(self, rank: int, lease: Lease) -> None:
        wanted = self.book.is_wanted(lease.number)
        units = {*range(lease.start, lease.stop)}
        counts = self.book.commit(rank, lease.number, self.now)
        assert counts == wanted
        if lease in self.held.values() and not units & self.committed:
            assert counts, "a lease in somebody's hands was refused"
        if counts:
            assert not units & self.committed, "a unit counts twice"
            self.committed |= units
        if self.held.get(rank) == lease:
            del self.held[rank]

    @rule(rank=RANKS)
    def lose(self, rank: int) -> None:
        lease = self.held.pop(rank, None)
        self.alive.discard(rank)
        back = lease is not None and not self.committed & {*range(lease.start, lease.stop)}
        expected = lease if back and lease not in self.held.values() else None
        assert self.book.lose(rank, self.now) == expected

    @rule(seconds=st.sampled_from([0.0, 0.001, 1.0, 30.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        silent = {rank for rank in self.held if self.now - self.seen[rank] > TIMEOUT}
        assert {*self.book.expire(self.now)} == silent
        for rank in silent:
            del self.held[rank]
            self.alive.discard(rank)

    @invariant()
    def the_counts_are_true(self) -> None:
        if not hasattr(self, "book"):
            return
        counts = self.book.counts
        begun = len(self.committed) >= self.units
        assert counts.done == min(len(self.committed), self.units)
        assert len(self.committed) + counts.leased + self.unlent() == self.units + begun
        assert self.book.awaits_result == (len(self.committed) == self.units)
        assert self.book.is_done == (len(self.committed) > self.units)

    def teardown(self) -> None:
        """One rank that lives finishes all that is left, after the others have died."""
        if not hasattr(self, "book"):
            return
        for rank in range(6):
            self.lose(rank)
        for _ in range(self.units + 2):
            if self.book.is_done:
                break
            self.ask(0)
            self.now += 0.1
            self.commit(0, self.held[0])
        assert self.book.is_done
        assert self.committed == {*range(self.units + 1)}


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def finished(book: Book, rank: int, now: float, seconds: float) -> Lease:
    """Let a rank ask for a lease and commit it, and return it."""
    lease = book.ask(rank, now)
    assert lease is not None
    assert book.commit(rank, lease.number, now + seconds)
    return lease


def test_a_lease_is_about_as_long_as_asked_at_the_speed_of_its_rank() -> None:
    book = Book(100_000, target_seconds=2.0)
    for rank, rate in enumerate((10.0, 40.0)):
        finished(book, rank, 0.0, 1 / rate)
    assert [book.ask(rank, 1.0).units for rank in (0, 1)] == [20, 80]  # type: ignore[union-attr]


def test_leases_are_longer_where_each_begins_with_a_wait() -> None:
    """Reading ahead begins anew with each lease: it must cost little, also in the last ones."""
    book, now, lengths = Book(10_000, target_seconds=TARGET), 0.0, []
    while (lease := book.ask(0, now)) is not None:
        lengths.append(lease.units)
        now += 1.3 + 0.1 * lease.units
        assert book.commit(0, lease.number, now, 1.3)
    assert now < 1.05 * 0.1 * 10_000  # two seconds for each would cost 80%
    assert min(lengths[1:-2]) > 5  # the last one is the result
    assert book.is_done


def test_the_copy_is_of_the_lease_that_a_frozen_rank_holds() -> None:
    book = Book(4, target_seconds=2.0)
    frozen = book.ask(0, 0.0)
    assert frozen is not None
    finished(book, 1, 0.0, 1.0)
    slow = book.ask(1, 100.0)
    other = book.ask(2, 100.0)
    assert slow is not None and other is not None
    assert book.ask(3, 101.0) == frozen
    assert book.commit(3, frozen.number, 102.0)
    assert not book.is_wanted(frozen.number)
    assert not book.commit(0, frozen.number, 103.0)
    assert book.counts.copies == 1
    assert book.counts.repeated == 1


def test_what_was_done_of_a_lease_that_is_given_up_is_counted_as_repeated() -> None:
    book = Book(101, target_seconds=1e6)
    finished(book, 0, 0.0, 1.0)
    lease = book.ask(0, 1.0)
    assert lease is not None
    book.progress(0, 2.0, 7)
    book.lose(0, 3.0)
    assert (book.counts.repeated, book.counts.lost) == (7, lease.units)


def test_units_that_take_longer_than_the_timeout_are_committed_at_last() -> None:
    """Each rank loses its lease before it has finished, and its commit counts all the same."""
    book, now = Book(3, timeout=60.0), 0.0
    for _ in range(3):
        lease = book.ask(0, now)
        assert lease is not None
        now += 90.0
        assert [*book.expire(now)] == [0]
        assert book.commit(0, lease.number, now)
    assert book.awaits_result


def test_a_lease_that_nobody_was_lent_cannot_be_committed() -> None:
    with pytest.raises(KeyError):
        Book(3).commit(0, 7, 0.0)
