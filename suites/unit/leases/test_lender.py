"""The lender goes on, whatever a rank does: nobody delays others, and no unit counts twice."""

from __future__ import annotations

import errno
import math
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from disteval import HarnessError, RankError, UsageError, WorldError
from disteval.cli.elastic_job import ElasticJob, Meeting
from disteval.cli.job import EvalJob
from disteval.coverage import Certificate, certify
from disteval.leases import Borrower, Lender, borrower, finishing, lender, messages
from disteval.leases.lending import Lending
from disteval.leases.members import Member
from disteval.leases.messages import (
    MAX_MESSAGE_BYTES,
    Ask,
    Commit,
    Computed,
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
from disteval.worlds import control_directory
from disteval.worlds.channel.connection import connect
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.processes import wait_for

UNITS = 12
SETTINGS = {"batch_size": "4", "metrics": "['a']"}


@contextmanager
def lending(**options: Any) -> Iterator[tuple[Lender, Path]]:
    directory = control_directory.create()
    lender = Lender(options.pop("folder", None), directory.path, **{"timeout": 30.0, **options})
    try:
        yield lender, directory.path
    finally:
        lender.close(0.0)
        directory.remove()


def certificate(start: int, stop: int) -> Certificate:
    return certify(np.arange(start, stop))


def add_up(parts: Any) -> list[int]:
    """Return the units of all leases, as the ranks committed them."""
    return [unit for _, _, totals, *_ in parts for unit in pickle.loads(totals)]


def work(directory: Path, rank: int | None = None, size: int = 0, **options: Any) -> Finished:
    """Do leases until there are none; the result is a list of all units, and some bytes."""
    with Borrower(directory, rank, SETTINGS, UNITS, **options) as borrower:
        for lease in borrower:
            units = list(range(lease.start, lease.stop))
            borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
        return borrower.finish(lambda parts: (add_up(parts), bytes(size)))


def units_of(finished: Finished) -> list[int]:
    assert finished.value is not None
    found: list[int] = pickle.loads(finished.value)[0]
    return found


ALL = list(range(UNITS))


def hello(rank: int, token: bytes = b"?", **changed: str) -> Hello:
    return Hello(rank, token, "here", os.getpid(), SETTINGS | changed, UNITS)


def tell(connection: Connection, message: Any) -> None:
    connection.send_bytes(pickle.dumps(message))


def hear(connection: Connection) -> Any:
    assert connection.poll(30)
    return pickle.loads(connection.recv_bytes())


def lent(connection: Connection, rank: int) -> Any:
    """Take a lease as a rank that does nothing with it."""
    tell(connection, hello(rank))
    hear(connection)
    tell(connection, Ask())
    found = hear(connection)
    assert isinstance(found, Lend)
    return found


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


def test_a_rank_that_is_first_although_it_was_lost_is_counted_and_the_remedy_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with lending(timeout=1.0) as (lender, directory), connect(directory) as slow:
        lease = lent(slow, 0)
        deadline = time.monotonic() + 30
        while not lender.report.lost and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "sent nothing for 1 s" in lender.report.lost[0]
        assert not any("lease_timeout" in record.message for record in caplog.records)
        units = list(range(lease.start, lease.stop))
        tell(slow, Commit(lease.number, pickle.dumps(units), tuple(certificate(*lease[1:3])), {}))
        assert units_of(work(directory, 1)) == ALL
    (told,) = [each.message for each in caplog.records if "lease_timeout" in each.message]
    assert "rank 0 went on after" in told
    assert "takes longer than 1 s: give a longer lease_timeout (on the command line, --tim" in told


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


def test_the_result_waits_for_many_ranks_as_one_copy_and_for_its_own_commit(
    tmp_path: Path,
) -> None:
    lending = Lending(tmp_path, 30.0, 1, None, None)
    sent: list[list[bytes]] = [[], []]
    ranks = []
    for rank in range(2):
        box = SimpleNamespace(send=sent[rank].append)
        ranks.append(lending.join(hello(rank, b"%d" % rank), cast(Any, box), 0.0))
    one, other = ranks
    assert one is not None and other is not None
    lending.take(one, Ask(), 0.0)
    lending.tick(0.0)
    while isinstance(lease := pickle.loads(sent[0][-1][4:]), Lend):
        lending.take(one, Commit(lease.number, b"", (1, 0), {}), 0.1)
        lending.take(one, Ask(), 0.1)
        lending.tick(0.1)
    before = [len(found) for found in sent]
    with lending.together():
        lending.take(one, Computed(b"result"), 0.2)
        lending.tick(0.2)
        assert [len(found) for found in sent] == before  # the leader may be killed now
    lending.announce()
    assert pickle.loads(sent[0][-1][4:]).value == b"result"
    assert sent[0][-1] is sent[1][-1]
    lending.close()


def test_totals_are_sent_in_pieces_to_the_rank_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finishing, "_BYTES", 1)
    pieces: list[int] = []
    send = Member.send

    def counted(member: Member, message: Any) -> None:
        if isinstance(message, Finish):
            pieces.append(len(message.committed))
        send(member, message)

    monkeypatch.setattr(Member, "send", counted)
    with lending() as (_, directory):
        assert units_of(work(directory, 0)) == ALL
    assert pieces == [1] * len(pieces)
    assert len(pieces) > 2


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


@pytest.mark.parametrize("dies", [True, False])
def test_the_next_rank_computes_if_one_dies_or_freezes_while_it_does(dies: bool) -> None:
    with lending(timeout=1.0) as (_, directory), connect(directory) as first:
        lease = lent(first, 0)
        while not isinstance(lease, Finish):
            units = list(range(lease.start, lease.stop))
            certified = tuple(certificate(lease.start, lease.stop))
            tell(first, Commit(lease.number, pickle.dumps(units), certified, {}))
            tell(first, Ask())
            lease = hear(first)
        if dies:
            first.close()
        assert units_of(work(directory, 1)) == ALL


def test_a_rank_may_compute_for_longer_than_the_timeout() -> None:
    with (
        lending(timeout=1.0) as (lender, directory),
        Borrower(directory, 0, SETTINGS, UNITS) as rank,
    ):
        for lease in rank:
            units = list(range(lease.start, lease.stop))
            rank.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
        # Twice the timeout after the last sign of a rank, the lender gives up.
        finished = rank.finish(lambda parts: (add_up(parts), bytes(lender.wait(2.5))))
        assert units_of(finished) == ALL


def test_an_error_while_the_result_is_computed_reaches_every_rank() -> None:
    def fails(directory: Path, rank: int) -> Finished:
        def compute(parts: Any) -> Any:
            raise RankError(0, f"could not add {len(add_up(parts))} units")

        with Borrower(directory, rank, SETTINGS, UNITS) as borrower:
            for lease in borrower:
                units = list(range(lease.start, lease.stop))
                borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
            return borrower.finish(compute)

    with lending() as (_, directory), ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(fails, directory, rank) for rank in range(2)]:
            assert (
                str(pickle.loads(each.result(60).error or b"")) == "rank 0 could not add 12 units"
            )


def test_a_lender_whose_leader_raises_the_outcome_has_it_for_ranks_that_come_late() -> None:
    directory = control_directory.create()

    def compute(parts: Any) -> Any:
        raise UsageError(f"{len(add_up(parts))} units are too few")

    def rank(number: int, may_begin: Callable[[], bool]) -> Exception:
        wait_for(may_begin, 30)
        with Borrower(directory.path, number, SETTINGS, UNITS) as borrower:
            for lease in borrower:
                units = list(range(lease.start, lease.stop))
                borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
            error: Exception = pickle.loads(borrower.finish(compute).error or b"")
            return error

    lender = Lender(None, directory.path, expected=2)
    try:
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(rank, 1, lambda: lender._closed_at < math.inf)
            with pytest.raises(UsageError, match="12 units are too few"), lender:
                raise rank(0, lambda: True)
            assert str(late.result(30)) == "12 units are too few"
    finally:
        directory.remove()


def test_a_result_that_no_message_holds_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 2_000_000)
    with lending() as (_, directory):
        error = pickle.loads(work(directory, 0, 1_100_000).error or b"")
    assert isinstance(error, UsageError)
    assert "the metrics' results are 1100" in str(error)


def test_no_rank_left_ends_the_evaluation_with_every_cause() -> None:
    with lending(timeout=1.0) as (lender, directory):
        for rank in range(2):
            with connect(directory) as dying:
                lent(dying, rank)
        assert lender.wait(30)
        assert lender.outcome is not None
        error = pickle.loads(lender.outcome.error or b"")
        assert isinstance(error, WorldError)
        assert "no rank is left, and 0 of 12 batches are committed: rank 0 " in str(error)
        assert "rank 1 " in str(error)


def test_all_ranks_that_raise_end_the_evaluation_at_once_with_every_cause() -> None:
    with lending(expected=2) as (lender, directory), connect(directory) as one:
        lent(one, 0)
        tell(one, Failed(0, "failed at sample 0: ValueError: no"))
        with Borrower(directory, 1, SETTINGS, UNITS) as two:
            next(iter(two))
            two.fail(None, "failed while starting: OSError: gone")
            error = pickle.loads(two.finish(add_up).error or b"")
        assert lender.report.failed[0] == "rank 0 failed at sample 0: ValueError: no"
    assert str(error) == (
        "rank 0 failed at sample 0: ValueError: no; rank 1 failed while starting: OSError: gone"
    )


def test_a_ledger_goes_on_after_its_lender_is_gone(tmp_path: Path) -> None:
    with lending(folder=tmp_path) as (_, directory), connect(directory) as rank:
        lease = lent(rank, 0)
        units = list(range(lease.start, lease.stop))
        tell(rank, Commit(lease.number, pickle.dumps(units), tuple(certificate(*lease[1:3])), {}))
        tell(rank, Ask())
        assert isinstance(hear(rank), Lend)
    done: list[Any] = []
    with lending(folder=tmp_path) as (lender, directory):
        finished = work(directory, 0)
        done.append(units_of(finished))
        assert finished.report.resumed == 1
    with lending(folder=tmp_path) as (lender, directory):  # it has the result already
        done.append(units_of(work(directory, 0)))
        assert lender.counts.leased == 0
    assert done == [ALL, ALL]
    with lending(folder=tmp_path) as (lender, directory):
        with Borrower(directory, 0, SETTINGS | {"batch_size": "5"}, UNITS) as borrower:
            assert not list(borrower)
            error = pickle.loads(borrower.finish(add_up).error or b"")
        assert isinstance(error, UsageError)
        assert "batch_size is" in str(error)


def test_a_lender_that_is_gone_is_an_error_that_says_so() -> None:
    directory = control_directory.create()
    try:
        lender = Lender(None, directory.path)
        with Borrower(directory.path, 0, SETTINGS, UNITS) as borrower:
            lease = next(iter(borrower))
            lender.close(0.0)
            with pytest.raises(WorldError, match="the lender of leases is gone") as first:
                borrower.commit(lease, b"", certificate(0, 1), {})
                next(iter(borrower))
            with pytest.raises(WorldError) as again:  # it tries, and waits, no second time
                borrower.fail(0, "failed at sample 0")
            assert again.value is first.value
    finally:
        directory.remove()


def test_a_lender_that_is_silent_is_an_error_that_says_so() -> None:
    stopped = threading.Event()
    with lending(timeout=1.0, on_event=lambda event: stopped.wait(20)) as (_, directory):
        answer = ThreadPoolExecutor(1).submit(Borrower, directory, 0, SETTINGS, UNITS)
        stopped.set()
        with answer.result(30) as borrower:
            stopped.clear()
            with connect(directory) as another:
                tell(another, hello(1))  # its event holds the lender up
                with pytest.raises(HarnessError, match="has been silent for 1 s"):
                    next(iter(borrower))
                    next(iter(borrower))
            stopped.set()


def test_groups_of_ranks_hold_their_leases_together() -> None:
    seen: dict[int, list[int]] = {rank: [] for rank in range(4)}

    def member(directory: Path, rank: int) -> Finished:
        with Borrower(directory, rank, SETTINGS, UNITS) as borrower:
            for lease in borrower:
                seen[rank].append(lease.number)
                units = list(range(lease.start, lease.stop))
                borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
            return borrower.finish(lambda parts: (add_up(parts), b""))

    with lending(ranks_per_lease=2) as (_, directory), ThreadPoolExecutor(4) as pool:
        found = [pool.submit(member, directory, rank) for rank in range(4)]
        assert all(units_of(each.result(60)) == ALL for each in found)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]


def test_a_group_that_lost_a_rank_is_lost() -> None:
    with lending(ranks_per_lease=2) as (lender, directory), ThreadPoolExecutor(3) as pool:
        with connect(directory) as dying:
            left = pool.submit(work, directory, 1)
            lent(dying, 0)
        others = [pool.submit(work, directory, rank) for rank in (2, 3)]
        assert all(units_of(each.result(60)) == ALL for each in [left, *others])
        assert [text[:6] for text in lender.report.lost] == ["rank 0"]


def test_the_ranks_of_one_group_count_once_where_they_raise_at_one_unit() -> None:
    with lending(ranks_per_lease=3, timeout=1.0) as (lender, directory):
        with ThreadPoolExecutor(3) as pool:
            raising = [Borrower(directory, rank, SETTINGS, UNITS) for rank in range(3)]
            begun = [pool.submit(next, iter(each)) for each in raising]
            assert {each.result(30).start for each in begun} == {0}
            for each in raising:
                each.fail(0, "failed at sample 0")
            others = [pool.submit(work, directory, rank) for rank in (3, 4, 5)]
            assert all(units_of(each.result(60)) == ALL for each in others)
        assert len(lender.report.failed) == 3
        for each in raising:
            each.finish(add_up)


def test_ranks_of_a_group_that_counted_other_samples_are_an_error() -> None:
    with lending(ranks_per_lease=2) as (lender, directory):
        with connect(directory) as one, connect(directory) as two:
            for rank, each in enumerate((one, two)):
                tell(each, hello(rank))
                hear(each)
                tell(each, Ask())
            for count, each in enumerate((one, two)):
                number = hear(each).number
                tell(each, Commit(number, b"", (count, count), {}))
            assert lender.wait(30)
        assert lender.outcome is not None
        assert "evaluated different samples" in str(pickle.loads(lender.outcome.error or b""))


def test_a_group_of_ranks_on_another_host_is_refused_with_a_remedy(tmp_path: Path) -> None:
    job = cast(EvalJob, None)
    meeting = Meeting(tmp_path, "")
    near = ElasticJob(job, meeting, 3, 4, False, 2, tmp_path)
    assert near.group().path.is_dir()
    far = ElasticJob(job, meeting, 3, 4, False, 2, tmp_path / "missing")
    with pytest.raises(UsageError, match=r"rank 3 runs on the host .* --join on their own host"):
        far.group()


def test_a_rank_that_joins_first_gets_no_number_of_a_rank_that_was_started() -> None:
    lending, late = Lending(None, 1.0, 1, 2, None), Letters()
    other = lending.join(hello(0)._replace(rank=None), cast(Any, Letters()), 0.0)
    own = lending.join(hello(1), cast(Any, late), 0.0)
    assert other is not None and own is not None
    assert (other.rank, own.rank) == (2, 1)
    assert isinstance(late[0], Welcome)
