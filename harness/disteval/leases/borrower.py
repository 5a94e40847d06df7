"""A rank's end of the leases: it asks for one, evaluates it, commits it, and asks again."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval import traces
from disteval.errors import UsageError, WorldError, describe_error
from disteval.leases.book import Lease
from disteval.ledger import Part
from disteval.metrics.totals import pack_totals
from disteval.plain import packed
from disteval.world.channel.connection import Address, bound_waits, connect
from disteval.world.channel.messages import (
    Ask,
    Collect,
    Collected,
    Commit,
    Failed,
    Finished,
    Join,
    Joined,
    Lend,
    Ping,
    Refused,
    Result,
    Unwanted,
    Working,
    check_size,
    pickled_error,
    receive,
    send,
)

Compute = Callable[[Sequence[Part]], Any]
"""A function of all that was committed to the result."""

_PROGRESS_SECONDS = 0.25
_MOST_REJOINED = 5
_PINGS = 4  # that a lender may leave without an answer, in the seconds of silence that are allowed


class Borrower:
    """Borrows leases; iterating over it yields them until no unit is left.

    If the connection breaks, the rank connects again, and goes on with its lease.

    Args:
        place: The address of the lender, or the directory to which it is written.
        rank: This rank; None takes a number that no rank has.
        settings: What must be equal on all ranks, by name.
        record: What must be equal in the ledger, by name.
        units: The number of units of the whole evaluation.
        patience: The seconds in which the lender must begin to listen.

    Raises:
        WorldError: The lender can't be reached.
        UsageError: It has refused this rank.

    Attributes:
        rank: The number of this rank.
        attempt: Which attempt at the lease this one is, from 1 up.
        is_kept: Whether what it commits is written to a disk.
        stored: What earlier runs have evaluated, without states and files.
        units: The number of units that these have left, which the caller finds.
    """

    def __init__(
        self,
        place: Path | Address,
        rank: int | None,
        settings: Mapping[str, str],
        record: Mapping[str, str],
        units: int,
        patience: float = 0.0,
    ) -> None:
        self._place = place
        self._request = Join(
            rank,
            secrets.token_bytes(16),
            socket.gethostname(),
            os.getpid(),
            settings,
            units,
            record,
        )
        self._unwanted: set[int] = set()
        self._commit: Commit | None = None  # the last one, until it is answered
        self._failure: Failed | None = None
        self._told, self.units, self.stored = 0.0, units, tuple[Part, ...]()
        self._end: Lend | Finished | None = None  # the last lease, or the end of the evaluation
        self._gone: WorldError | None = None  # why the lender can't be reached any more
        self.attempt = self._joined = self._rejoined = 0
        self._connection = self._join(patience)

    def __enter__(self) -> Borrower:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def __iter__(self) -> Iterator[Lease]:
        while self._failure is None and self._end is None:
            with traces.span("waiting", "wait for a lease"):
                message = self._ask()
            if isinstance(message, Finished) or message.start >= self.units:
                self._end = message
                return
            self.attempt = message.attempt
            lease = Lease(message.number, message.start, message.stop)
            with traces.span("lease", "lease", **lease._asdict(), attempt=message.attempt):
                yield lease

    def progress(self, lease: Lease, done: int) -> None:
        """Say how many units of the lease are done; often enough, and no more often."""
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self._send(Working(lease.number, done))

    def is_wanted(self, lease: Lease) -> bool:
        """Return whether no other rank was first with the lease; it never waits."""
        with suppress(EOFError, OSError):  # a broken connection is noticed by the next message
            while self._connection.poll():
                message = self._receive()
                if isinstance(message, Unwanted):
                    self._unwanted.add(message.number)
                if isinstance(message, Finished):
                    self._end = message
        is_first = self._end is None and lease.number not in self._unwanted
        return is_first or not self._is_alone  # the others of its group wait for this rank

    def commit(self, lease: Lease, part: Part, waited: float) -> None:
        """Send what the lease amounts to, and how long its first batch was waited for.

        Raises:
            UsageError: It is too large for a message.
        """
        what = f"the metrics' state over units {lease.start} to {lease.stop - 1}"
        states = pack_totals(part.states)
        check_size(states, what, "use metrics that follow from sums, or a smaller batch_size")
        self._commit = Commit(lease.number, part._replace(states=states), waited)
        self._send(self._commit)

    def fail(self, unit: int | None, what: str) -> None:
        """Say that this rank raised an exception; it takes no more leases."""
        self._failure = Failed(unit, what)
        self._commit = None
        self._send(self._failure)

    def finish(self, compute: Compute) -> Finished:
        """Pong for the end of the evaluation, and compute its result if this rank is lent it."""
        while not isinstance(self._end, Finished):
            if self._end is not None:
                self._compute(self._end, compute)
            with traces.span("waiting", "wait for the end"):
                self._end = self._ask()
        return self._end

    def _compute(self, lease: Lend, compute: Compute) -> None:
        parts, is_last = list[Part](), False
        while not is_last:
            self._send(Collect(len(parts)))
            message = self._receive_soon(Collected)
            if isinstance(message, Finished):  # another rank was first
                return
            if message is not None:
                parts += message.parts
                is_last = message.is_last
        try:
            with traces.span("metric", "compute"):
                value = packed(compute(parts))
            check_size(value, "the metrics' results", "have a metric write its result to a file")
            result = Result(value)
        except Exception as error:
            result = Result(None, pickled_error(error))
        self._commit = Commit(lease.number, result)
        self._send(self._commit)

    def _ask(self) -> Any:
        """Ask until there is an answer: a lease, or the end."""
        while True:
            joined = self._joined
            self._send(Ask(self.units))
            message = self._receive_soon(Lend)
            if message is not None:
                self._commit, self._rejoined = None, 0
                return message
            assert joined != self._joined

    def _receive_soon(self, *kinds: type) -> Any:
        """Return the next message of some kinds, or the end; None after a new connection."""
        joined, unanswered = self._joined, 0
        while self._joined == joined and not isinstance(self._end, Finished):
            try:
                if self._connection.poll(self._timeout / _PINGS):
                    unanswered = 0
                    message = self._receive()
                    if isinstance(message, kinds):
                        return message
                    if isinstance(message, Finished):
                        self._end = message
                    continue
            except (EOFError, OSError) as error:
                self._rejoin(error)
                continue
            unanswered += 1  # not the time, in which this process may have been stopped
            if unanswered == _PINGS:
                raise WorldError(
                    f"the lender of leases has been silent for {self._timeout:g} s; see whether "
                    f"rank 0, or the leader, is stopped. The ledger, if any, has what was committed"
                )
            self._send(Ping())
        return self._end if isinstance(self._end, Finished) else None

    def _send(self, message: Any) -> None:
        """Send a message; it is lost if the connection is broken, and a new one begins then."""
        if isinstance(self._end, Finished):
            return
        try:
            send(self._connection, message)
        except OSError as error:
            self._rejoin(error)

    def _receive(self) -> Any:
        return receive(self._connection)

    def _rejoin(self, error: Exception) -> None:
        """Connect again, unless the lender's last message was the end of the evaluation."""
        if self._gone is not None:
            raise self._gone
        with suppress(EOFError, OSError):
            while self._connection.poll():
                if isinstance(message := self._receive(), Finished):
                    self._end = message
                    return
        self._rejoined += 1
        try:
            self._connection.close()
            if self._rejoined > _MOST_REJOINED:
                raise WorldError(f"it has ended {_MOST_REJOINED} connections in a row")
            self._connection = self._join(0.0)
        except WorldError as gone:
            self._gone = WorldError(
                f"the lender of leases is gone ({describe_error(error)}, and then: {gone}); it "
                f"runs in rank 0, or in the leader. What was committed is in the ledger, if there "
                f"is one, and the same command goes on from there"
            )
            raise self._gone from error
        for unanswered in (self._commit, self._failure):
            if unanswered is not None:
                self._send(unanswered)

    def _join(self, patience: float) -> Connection:
        connection = connect(self._place, patience)
        try:
            bound_waits(connection, 60.0)
            send(connection, self._request)
            answer = receive(connection)
        except (EOFError, OSError) as error:
            connection.close()
            raise WorldError(
                f"the lender of leases did not answer ({describe_error(error)}); see whether the "
                f"process of rank 0, or of the leader, has ended"
            ) from error
        if isinstance(answer, Refused):
            connection.close()
            raise UsageError(answer.what)
        assert isinstance(answer, Joined)
        self.rank, self._timeout, self._is_alone, self.is_kept, self.stored = answer
        self._request = self._request._replace(rank=answer.rank)
        bound_waits(connection, self._timeout)
        self._joined += 1
        return connection
