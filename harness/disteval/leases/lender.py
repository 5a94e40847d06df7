"""The lender of leases: what it does with the messages of ranks, and a thread in which it runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from disteval.data.contents import CONTENTS, difference
from disteval.data.predictions import Predictions
from disteval.errors import HarnessError, UsageError, describe_error
from disteval.identity import differences
from disteval.leases.book import Book, Counts
from disteval.leases.members import Member, Members, OnEvent
from disteval.ledger import Ledger, Part, merged
from disteval.outputs import OUTPUTS, largest_gap
from disteval.world.channel.leader import Channel
from disteval.world.channel.link import Link
from disteval.world.channel.messages import (
    Ask,
    Collect,
    Collected,
    Commit,
    Failed,
    Finished,
    Hello,
    Join,
    Joined,
    LeaseReport,
    Lend,
    Ping,
    Pong,
    Refused,
    Returned,
    Unwanted,
    Working,
    pickled_error,
)

_log = logging.getLogger("disteval.leases")
_TICK_SECONDS = 0.25
_STOPPED_SECONDS = 1.0  # without a look at the ranks, after which the lender itself was stopped
_LAST_TICK_SECONDS = 0.02  # while ranks are waited for that have not got the result

Replies = list[tuple[Any, Sequence[int]]]
"""Messages, with the ranks that each is for."""


class Lender:
    """Lends the leases of one evaluation to ranks until all are committed.

    It has no connections and no thread: whoever leads the ranks passes what they send to `turn`.

    Args:
        folder: The folder of the ledger; None keeps it in memory.
        timeout: The seconds of silence after which a rank has lost its lease.
        ranks_per_lease: The number of consecutive ranks that hold a lease together.
        in_turns: Whether the ranks of a lease evaluate different batches of it.
        expected: The number of ranks that were started; None if it is not known. If one of them
            evaluates something else, the evaluation fails; a rank that joins later is refused.
        restarts: Whether a rank that was lost is started again.
        on_event: Called with what happens to ranks.
        predictions: Where ranks write predictions, if they do. What lies there damaged is
            evaluated again; without ``folder``, the ledger is there until the result is.

    Attributes:
        outcome: The end of the evaluation; None before.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        timeout: float = 60.0,
        ranks_per_lease: int = 1,
        in_turns: bool = False,
        expected: int | None = None,
        restarts: bool = False,
        on_event: OnEvent | None = None,
        predictions: Predictions | None = None,
    ) -> None:
        self._in_turns = in_turns
        self.outcome: Finished | None = None
        self._members = Members(timeout, ranks_per_lease, None if restarts else expected, on_event)
        self._expected = expected or 0
        self._folder, self._timeout, self._size = folder, timeout, ranks_per_lease
        self._ledger: Ledger | None = None
        self._predictions = predictions
        self._book: Book | None = None
        self._settings: dict[str, str] = {}
        self._first = 0  # the rank whose settings these are
        self._early: dict[int, Join] = {}  # of ranks that came before the first of any group
        self._units = self._before = 0  # all, and those that earlier runs have evaluated
        self._stored: tuple[Part, ...] = ()
        self._waiting: OrderedDict[int, None] = OrderedDict()  # groups, in the order of asking
        self._attempts: dict[int, int] = {}
        self._committed = self._resumed = 0
        self._difference: float | None = None
        self._is_finished, self._looked_at = False, -math.inf
        self._replies: Replies = []

    @property
    def counts(self) -> Counts:
        """How far the evaluation is, in units."""
        if self._book is None:
            return Counts(self._units, self._units * (self.outcome is not None), 0, 0, 0, 0)
        found = self._book.counts
        return found._replace(units=self._units, done=self._before + found.done)

    @property
    def report(self) -> LeaseReport:
        """What has happened to leases so far."""
        return LeaseReport(
            ranks=len(self._members.by_rank),
            committed=self._committed,
            resumed=self._resumed,
            lost=tuple(self._members.lost),
            failed=tuple(f"rank {rank} {what}" for rank, _, what in self._members.failed),
            repeated=self.counts.repeated,
            copies=self.counts.copies,
            difference=self._difference,
            since=self._ledger.since if self._ledger is not None and self._resumed else "",
        )

    def turn(self, heard: Iterable[tuple[int, Any]], now: float) -> Replies:
        """Take what ranks have sent, and do what is due; what is committed is written at once.

        Args:
            heard: Ranks with their messages, or with the error by which the connection has ended.
            now: The time on the monotonic clock.

        Returns:
            What they are to be sent.
        """
        try:
            # All that is committed meanwhile is on the disk when the block ends.
            log = None if self._ledger is None else self._ledger.log
            with nullcontext() if log is None else log.together():
                for rank, message in heard:
                    self._take(rank, message, now)
                self._do_what_is_due(now)
        except HarnessError as error:  # as of a ledger whose disk is full
            self.fail(error)
        waiting = [
            each for each in self._members.by_rank.values() if not each.has_result and each.is_there
        ]
        if self.outcome is not None and waiting:  # the ledger has it now
            for member in waiting:
                member.has_result = True
            self._send(self.outcome, *[member.rank for member in waiting])
        replies, self._replies = self._replies, []
        return replies

    def lose(self, rank: int, why: str, now: float) -> None:
        """Note that a rank is lost, or has ended before it could take part."""
        member = self._members.by_rank.get(rank)
        self._members.coming.pop(rank, None)
        self._early.pop(rank, None)
        if self.outcome is None and member is None:
            self._members.absent.add(rank)
            self._members.lost.append(f"rank {rank}: {why}")
        elif self.outcome is None and member is not None and member.is_there:
            self._members.note_lost(member, why)
            if self._book is not None:
                self._book.lose(member.holder, now)
            if self._size > 1:
                self._members.bench(member, f"was lost: {why}")
        if member is not None:
            member.is_there = member.waits = False

    def answering(self, now: float) -> list[int]:
        """Return the ranks that are there, and were heard of in time."""
        return [
            m.rank
            for m in self._members.by_rank.values()
            if m.is_there and now - m.heard <= self._timeout
        ]

    def fail(self, error: Exception) -> None:
        """End the evaluation with an error, unless it has ended; the ledger keeps what it has."""
        if self.outcome is None:
            self.outcome = Finished(None, pickled_error(error), self.report)
        else:
            _log.warning("after the end of the evaluation: %s", error)

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            if self._is_finished and self._folder is None:
                self._ledger.remove()  # the result is in the folder of predictions
            self._ledger.close()

    def _take(self, rank: int, message: Any, now: float) -> None:
        """Take a message, or the end of a rank's connection."""
        member = self._members.by_rank.get(rank)
        if isinstance(message, Exception):
            self.lose(rank, f"its connection ended ({describe_error(message)})", now)
        elif isinstance(message, Hello):
            if member is not None:
                self.lose(rank, "another process took its place", now)
            self._members.hellos[rank] = message
            self._members.coming[rank] = now
        elif isinstance(message, Join):
            self._join(rank, message, now)
        elif member is not None:
            self._members.note_heard(member, now)
            self._answer(member, message, now)
        elif isinstance(message, Ping) and rank in self._early:
            self._send(Pong(), rank)

    def _answer(self, member: Member, message: Any, now: float) -> None:
        """Do what a message asks for, unless it is about an order of the leader."""
        book = self._book
        if isinstance(message, Ping):
            self._send(Pong(), member.rank)
        elif isinstance(message, Ask):
            if book is None and self.outcome is None:
                # What earlier runs have left, of which a rank has found out how much it is.
                self._before = self._units - message.units
                book = self._book = Book(message.units, timeout=self._timeout)
            member.waits = True
            group = member.rank // self._size
            if self._members.is_ready(group):
                self._waiting.setdefault(group)
                if book is not None:  # of a lease that another group committed first, too
                    book.give_up(member.holder)
        elif isinstance(message, Working) and book is not None:
            book.progress(member.holder, now, message.done)
        elif isinstance(message, Commit):
            self._take_commit(member, message, now)
        elif isinstance(message, Failed):
            self._members.note_failed(member, message.unit, message.what)
            if book is not None:
                book.lose(member.holder, now)
        elif isinstance(message, Collect) and self._ledger is not None:
            self._send(Collected(*self._ledger.some(message.start)), member.rank)
            if book is not None:
                book.progress(member.holder, now)

    def _send(self, message: Any, *ranks: int) -> None:
        self._replies.append((message, ranks))

    def _do_what_is_due(self, now: float) -> None:
        """Take leases back, lend them, or give up."""
        if self.outcome is not None:
            return
        # A job may be stopped as a whole; when it goes on, its ranks have to be heard first.
        before, self._looked_at = self._looked_at, now
        was_stopped = now - before > max(_STOPPED_SECONDS, self._timeout / 2)
        if self._book is not None:
            if was_stopped:
                self._book.hear_all(now)
            for holder, units in self._book.expire(now).items():
                for member in self._members.by_rank.values():
                    lease = member.lease
                    if member.holder == holder and lease and lease.stop == units.stop:
                        member.silent_at = units
                        why = f"sent nothing for {self._timeout:g} s"
                        self._members.note_lost(member, why, "silent")
            self._lend(now)
        error = self._members.why_to_end(now, self.counts, was_stopped=was_stopped)
        if error is not None:
            self.fail(error)

    def _join(self, rank: int, join: Join, now: float) -> None:
        """Take a rank in, unless it evaluates something else than the first."""
        if self._ledger is None and self.outcome is None:
            if rank % self._size:  # it may hold another part of a model than an earlier run's first
                self._early[rank] = join
                return
            self._first = rank
            self._open(join)
            for other, its in self._early.items():
                self._join(other, its, now)
            self._early = {}
        here = {**join.settings, "the number of batches": str(join.units)}
        known = dict(self._settings)
        for name in (CONTENTS, OUTPUTS):
            if known.get(name) and here.get(name):
                known[name] = here[name]  # they are compared below
        error = self._difference_of(join, rank)
        is_late = rank >= self._expected or rank in self._members.by_rank
        if found := differences(known, here, f"on rank {self._first}", f"on rank {rank}"):
            told = f"ranks do not evaluate the same thing: {found}; give every rank the same"
            error = UsageError(told)
        elif error is not None:
            is_late = False
        if error is not None:
            if not is_late:  # nobody knows which rank is right
                self.fail(error)
            self._send(Refused(str(error)), rank)
            return
        self._members.add(rank, now)
        is_kept = self._ledger is not None and self._ledger.log is not None
        self._send(Joined(rank, self._timeout, self._size == 1, is_kept, self._stored), rank)

    def _open(self, join: Join) -> None:
        """Open the ledger with the record of the first rank."""
        self._units = join.units
        self._settings = {**join.settings, "the number of batches": str(join.units)}
        record = dict(join.record)
        if self._size > 1 and not self._in_turns:  # the outputs of the first of them alone count
            self._settings.pop(OUTPUTS, None)
            record.pop(OUTPUTS, None)
        try:
            self._ledger = Ledger(self._folder, record, self._predictions)
        except HarnessError as error:
            self.fail(error)
            return
        stored = self._ledger.stored
        self._stored = tuple(part._replace(states=b"", files=()) for part in stored)
        self._committed = sum(part.parts for part in stored)
        self._resumed = sum(part.certificate.counted for part in stored)
        if self._ledger.result is not None:
            self.outcome = Finished(self._ledger.result, None, self.report)

    def _difference_of(self, join: Join, rank: int) -> UsageError | None:
        """Return the error of a rank that has other samples or another model than the first."""
        known, joins = self._settings, join.settings
        ranks = self._first, rank
        error = difference(known.get(CONTENTS, ""), joins.get(CONTENTS, ""), ranks)
        if error is not None:
            return error
        outputs = known.get(OUTPUTS, ""), joins.get(OUTPUTS, "")
        try:
            found = largest_gap([*zip(ranks, outputs, strict=True)])
        except UsageError as error:
            return error
        if found is not None:
            self._difference = max(found, self._difference or 0.0)
        return None

    def _lend(self, now: float) -> None:
        """Lend leases to groups that wait, or the result to a rank."""
        book = self._book
        assert book is not None
        asking = [self._members.group(g) for g in self._waiting if self._members.is_ready(g)]
        if book.awaits_result:
            asking = [[each] for each in self._members.by_rank.values() if each.is_ready][:1]
            for (one,) in asking:
                one.holder = one.rank
        for members in asking:
            lease = book.ask(members[0].holder, now)
            if lease is None:
                return  # there is nothing for the others either
            self._waiting.pop(members[0].rank // self._size, None)
            attempt = self._attempts[lease.number] = self._attempts.get(lease.number, 0) + 1
            for member in members:
                member.waits, member.lease, member.report = False, lease, None
            self._send(Lend(*lease, attempt), *[member.rank for member in members])

    def _take_commit(self, member: Member, commit: Commit, now: float) -> None:
        lease = member.lease
        if lease is None or commit.number != lease.number:
            _log.warning(
                "%s committed lease %d, which it does not hold", member.name, commit.number
            )
            return
        if self._book is None or self._ledger is None or self.outcome is not None:
            return
        if isinstance(commit.made, Returned):
            value, error = commit.made
            if value is not None:
                self._ledger.finish(value)
                self._is_finished = True
            self.outcome = Finished(value, error, self.report)
            self._book.commit(member.holder, lease.number, now)
            return
        member.report = commit
        group = self._members.group(member.rank // self._size)
        reports = [each.report for each in group if each.report is not None]
        if len(reports) < self._size:
            return
        for each in group:
            each.lease = each.report = None
        made = [report.made for report in reports if isinstance(report.made, Part)]
        first = made[0]
        parts = merged(made) if self._in_turns else [first]
        if not self._in_turns and any(m.certificate != first.certificate for m in made):
            names = ", ".join(each.name for each in group)
            self.fail(
                HarnessError(
                    f"the ranks of a group evaluated different samples of lease {lease.number}: "
                    f"{names}; each of them must evaluate all samples of a lease"
                )
            )
            return
        attempt = self._attempts[lease.number]
        if self._book.is_wanted(lease.number):
            # On the disk first: a lease that the book counts is never lost.
            for part in parts:
                self._ledger.commit(part)
            self._committed += 1
        waited = max(report.waited for report in reports)
        self._book.commit(member.holder, lease.number, now, waited)
        if attempt > 1:
            held = {m.rank: m.lease for m in self._members.by_rank.values() if m.lease}
            others = [rank for rank, its in held.items() if its.number == lease.number]
            self._send(Unwanted(lease.number), *others)


class LenderThread:
    """Leads ranks that borrow leases, until all that answer have the result.

    Args:
        lender: What lends; it is closed at the end.
        channel: The connections to the ranks; they are closed at the end.
        patience: For how many seconds ranks are waited for that do not read the result.

    Attributes:
        link: The other end of a connection to it, for a rank of this process.
    """

    def __init__(self, lender: Lender, channel: Channel, patience: float) -> None:
        self._lender, self._channel, self._patience = lender, channel, patience
        ours, theirs = Pipe()
        self.link = Link(theirs)
        channel.take_in(ours)
        self._ended = threading.Event()
        self._leave_by = math.inf
        self._thread = threading.Thread(target=self._run, name="disteval-lender", daemon=True)
        self._thread.start()

    def __enter__(self) -> LenderThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the thread, once every rank that answers has the result, or at once."""
        # The error may be the outcome, for which the other ranks wait; an interrupt never is.
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        self._leave_by = 0.0 if is_interrupt else time.monotonic() + self._patience
        self.link.close()  # which wakes it
        self._thread.join()

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end of the evaluation; return whether it has ended."""
        return self._ended.wait(seconds)

    def _run(self) -> None:
        lender, channel = self._lender, self._channel
        try:
            while (now := time.monotonic()) < self._leave_by:
                is_last = self._leave_by < math.inf
                if is_last and (
                    lender.outcome is None or all(map(channel.has_delivered, lender.answering(now)))
                ):
                    break
                seconds = _LAST_TICK_SECONDS if is_last else _TICK_SECONDS
                heard = [*channel.poll(seconds)]
                for message, ranks in lender.turn(heard, time.monotonic()):
                    channel.send(message, *ranks)
                if lender.outcome is not None:
                    self._ended.set()
        except Exception as error:  # ranks and the leader wait for this thread
            _log.exception("the lender of leases failed")
            what = f"the lender of leases failed: {describe_error(error)}"
            lender.fail(error if isinstance(error, HarnessError) else HarnessError(what))
            self._ended.set()
        finally:
            channel.close()
            lender.close()
