"""The lender goes on, whatever a rank does: nobody delays others, and no unit counts twice."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from disteval import UsageError
from disteval.leases import Borrower, borrower, lender
from disteval.leases.lending import Lending
from disteval.leases.messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Commit,
    Failed,
    Finish,
    Finished,
    Hello,
    Lend,
    Ping,
    Progress,
    Refused,
    Welcome,
    encode,
)
from disteval.worlds.channel.connection import connect
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.processes import wait_for
from suites.resume.lending import (
    ALL,
    SETTINGS,
    UNITS,
    add_up,
    certificate,
    hear,
    hello,
    lending,
    lent,
    tell,
    units_of,
    work,
)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_rank_that_dies_at_any_byte_costs_its_lease_alone(data: st.DataObject) -> None:
    said = encode(hello(0)) + encode(Ask()) + encode(Progress(0, 0))
    said += encode(Commit(0, pickle.dumps([0]), tuple(certificate(0, 1)), {})) + encode(Ask())
    said = said[: data.draw(st.integers(0, len(said)))]
    with lending() as (_, directory):
        with socket.socket(fileno=os.dup((c := connect(directory)).fileno())) as handle:
            c.close()
            handle.sendall(said)
        assert units_of(work(directory, 1)) == ALL


garbage = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.binary(max_size=60).map(lambda data: struct.pack("!i", len(data)) + data),
    st.sampled_from(
        [
            struct.pack("!i", MAX_MESSAGE_BYTES + 1),
            struct.pack("!iQ", -1, 1 << 60),
            encode("a text"),
            encode(Ask()),
            encode(Commit(99, b"", (0, 0), {})),
            encode(hello("zero")),  # type: ignore[arg-type]
            encode(Hello(0, b"", "here", 1, None, UNITS)),  # type: ignore[arg-type]
        ]
    ),
)


@settings(max_examples=40, deadline=None)
@given(garbage, st.booleans())
def test_a_rank_that_sends_something_else_is_dropped(sent: bytes, after_hello: bool) -> None:
    with lending() as (_, directory), connect(directory) as stranger:
        if after_hello:
            lent(stranger, 5)
        with socket.socket(fileno=os.dup(stranger.fileno())) as handle:
            handle.sendall(sent)
            handle.shutdown(socket.SHUT_WR)
        assert units_of(work(directory, 0)) == ALL


@pytest.mark.parametrize(
    "commit",
    [
        Commit(3, pickle.dumps([7]), (1, 7), {}),  # of a lease that it does not hold
        Commit(0, pickle.dumps([7]), ("one", "two"), {}),  # type: ignore[arg-type]
        Commit("0", b"", (0, 0), {}),  # type: ignore[arg-type]
        Commit(0, 5, (0, 0), {}),  # type: ignore[arg-type]
    ],
)
def test_a_commit_that_makes_no_sense_counts_nothing(commit: Commit) -> None:
    with lending() as (lender, directory), connect(directory) as rank:
        lent(rank, 0)
        tell(rank, commit)
        rank.close()
        assert units_of(work(directory, 1)) == ALL
        assert lender.report.lost


def test_a_silent_rank_loses_its_lease_and_what_it_sends_later_counts_once() -> None:
    with lending(timeout=1.0) as (lender, directory), connect(directory) as silent:
        lease = lent(silent, 0)
        assert units_of(work(directory, 1)) == ALL
        assert lender.counts.copies or lender.report.lost
        tell(silent, Commit(lease.number, pickle.dumps([lease.start]), (1, 0), {}))
        tell(silent, Ask())
        while not isinstance(message := hear(silent), Finished):
            pass
        assert units_of(message) == ALL


def test_a_rank_that_never_reads_delays_nobody() -> None:
    size = 20_000_000  # far more than the system takes for a rank that does not read
    with lending() as (lender, directory), connect(directory) as frozen:
        lent(frozen, 0)
        begin = time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            ranks = [pool.submit(work, directory, rank, size) for rank in (1, 2, 3)]
            assert all(units_of(each.result(60)) == ALL for each in ranks)
        lender.close(1.0)
        assert time.monotonic() - begin < 25  # less than the timeout of 30 s


def test_a_rank_that_finds_too_many_open_files_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(connection: Connection) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with lending() as (_, directory), Borrower(directory, 0, SETTINGS, UNITS) as borrower:
        with monkeypatch.context() as patch, connect(directory) as another:
            patch.setattr(lender, "Mailbox", none_left)
            tell(another, hello(1))
            with pytest.raises((EOFError, OSError)):
                hear(another)
        for lease in borrower:
            units = list(range(lease.start, lease.stop))
            borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
        assert units_of(borrower.finish(lambda parts: (add_up(parts), b""))) == ALL


def test_a_rank_whose_connection_breaks_goes_on_with_its_lease() -> None:
    with lending() as (lender, directory), Borrower(directory, 0, SETTINGS, UNITS) as borrower:
        taken = []
        for lease in borrower:
            taken.append(lease.start)
            with socket.socket(fileno=os.dup(borrower._connection.fileno())) as handle:
                handle.shutdown(socket.SHUT_RDWR)
            units = list(range(lease.start, lease.stop))
            borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
        finished = borrower.finish(lambda parts: (add_up(parts), b""))
        assert units_of(finished) == ALL
        assert taken == sorted(set(taken))  # none was lent again
        assert lender.report.lost


def test_a_second_process_with_the_number_of_a_rank_is_refused() -> None:
    with lending() as (_, directory), Borrower(directory, 0, SETTINGS, UNITS):
        with pytest.raises(UsageError, match=r"rank 0 .* takes part already"):
            Borrower(directory, 0, SETTINGS, UNITS)
        with Borrower(directory, None, SETTINGS, UNITS) as joined:
            assert joined.rank == 1


class Letters(list[Any]):
    """A mailbox that keeps what is sent."""

    def send(self, data: bytes) -> None:
        self.append(pickle.loads(data[4:]))


def test_another_process_takes_the_place_of_a_rank_that_is_silent_for_too_long() -> None:
    """The connection of a host that has vanished ends hours later, or in the middle of a lease."""
    lending, old, new = Lending(None, 1.0, 1, None, None), Letters(), Letters()
    vanished = lending.join(hello(0, b"old"), cast(Any, old), 0.0)
    assert vanished is not None
    lending.take(vanished, Ask(), 0.0)
    lending.tick(0.0)
    assert old[-1] == Lend(0, 0, 1, 1)
    assert lending.join(hello(0, b"new"), cast(Any, new), 1.0) is None
    assert isinstance(new[-1], Refused)
    again = lending.join(hello(0, b"new"), cast(Any, new), 1.5)
    assert again is not None
    lending.take(again, Ask(), 1.5)
    lending.tick(1.5)
    assert isinstance(new[-1], Lend)
    for late in (Commit(0, b"late", (1, 0), {}), Failed(0, "late"), Ask()):
        lending.take(vanished, late, 1.5)  # what had been on its way
    while isinstance(lease := new[-1], Lend):
        lending.take(again, Commit(lease.number, b"", (1, 0), {}), 1.6)
        lending.take(again, Ask(), 1.6)
        lending.tick(1.6)
    assert isinstance(lease, Finish)
    assert [part[2] for part in lease.committed] == [b""] * len(lease.committed)
    assert lending.counts.done == UNITS
    assert not lending.report.failed
    assert "was silent for 2 s, and another process took its place" in lending.report.lost[0]
    assert isinstance(old[-1], Lend)  # it was sent nothing more
    lending.close()


def test_a_rank_that_comes_back_without_the_rest_of_its_group_is_no_reason_to_wait() -> None:
    lending = Lending(None, 1.0, 2, 2, None)
    one = lending.join(hello(0, b"one"), cast(Any, Letters()), 0.0)
    assert one is not None
    lending.join(hello(1, b"vanished"), cast(Any, Letters()), 0.0)
    lending.take(one, Ask(), 1.5)
    again = lending.join(hello(1, b"again"), cast(Any, Letters()), 1.5)
    assert again is not None
    lending.take(again, Ask(), 1.5)
    lending.tick(1.5)
    assert lending.outcome is not None
    assert "no rank is left" in str(pickle.loads(lending.outcome.error or b""))
    lending.close()


def test_a_job_that_was_stopped_as_a_whole_goes_on() -> None:
    lending = Lending(None, 4.0, 1, 1, None)
    rank = lending.join(hello(0), cast(Any, Letters()), 0.0)
    assert rank is not None
    for at in (0.0, 1.0, 3600.0, 3601.0):
        lending.tick(at)
    lending.take(rank, Ask(), 3602.0)
    for at in (3603.0, 3605.0):
        lending.tick(at)
    assert lending.outcome is None
    for at in range(3606, 3614):
        lending.tick(at)
    assert lending.outcome is not None
    lending.close()


def test_a_rank_that_was_stopped_while_it_waited_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[type] = []
    send = Borrower._send

    def noted(borrower: Borrower, message: Any) -> None:
        sent.append(type(message))
        send(borrower, message)

    monkeypatch.setattr(Borrower, "_send", noted)
    clock = SimpleNamespace(monotonic=count(0, 3600).__next__)
    monkeypatch.setattr(borrower, "time", clock)
    with lending(ranks_per_lease=2, timeout=1.0) as (_, directory), ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(work, directory, 0)
        assert wait_for(lambda: Ping in sent or waiting.done(), 30)
        assert units_of(work(directory, 1)) == units_of(waiting.result(30)) == ALL


def test_a_connection_that_ends_after_its_rank_has_another_takes_nothing_back() -> None:
    with lending() as (lender, directory), connect(directory) as old, connect(directory) as new:
        lease = lent(old, 0)
        tell(new, hello(0))
        hear(new)
        old.close()
        units = list(range(lease.start, lease.stop))
        tell(new, Commit(lease.number, pickle.dumps(units), tuple(certificate(*lease[1:3])), {}))
        tell(new, Ask())
        assert isinstance(hear(new), Lend)
        assert not lender.report.lost
        assert (lender.counts.done, lender.counts.lost) == (lease.stop - lease.start, 0)


def test_a_rank_with_other_settings_is_refused_by_the_setting() -> None:
    with lending() as (_, directory), Borrower(directory, 0, SETTINGS, UNITS):
        message = "batch_size is 4 on the first rank and 8 on rank 1"
        with pytest.raises(UsageError, match=message):
            Borrower(directory, 1, SETTINGS | {"batch_size": "8"}, UNITS)
        with pytest.raises(UsageError, match=r"the number of batches is 12 .* and 13 on rank 1"):
            Borrower(directory, 1, SETTINGS, UNITS + 1)


def test_a_rank_that_joins_first_gets_no_number_of_a_rank_that_was_started() -> None:
    lending, late = Lending(None, 1.0, 1, 2, None), Letters()
    other = lending.join(hello(0)._replace(rank=None), cast(Any, Letters()), 0.0)
    own = lending.join(hello(1), cast(Any, late), 0.0)
    assert other is not None and own is not None
    assert (other.rank, own.rank) == (2, 1)
    assert isinstance(late[0], Welcome)
