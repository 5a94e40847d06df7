"""One rank computes the result, and every rank gets it or learns why there is none."""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from disteval import HarnessError, RankError, UsageError, WorldError
from disteval.leases import Borrower, Lender, finishing, messages
from disteval.leases.lending import Lending
from disteval.leases.members import Member
from disteval.leases.messages import Ask, Commit, Computed, Failed, Finish, Finished, Lend
from disteval.worlds import control_directory
from disteval.worlds.channel.connection import connect

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


def test_the_result_waits_for_many_ranks_as_one_copy_and_for_its_own_commit(tmp_path: Path) -> None:
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
