"""A rank's end of the leases: it asks for one, evaluates it, commits it, and asks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from disteval import traces
from disteval.errors import UsageError, WorldError
from disteval.leases.book import Lease
from disteval.ledger import Part
from disteval.metrics.totals import pack_totals
from disteval.plain import packed
from disteval.world.channel.link import Link
from disteval.world.channel.messages import (
    Ask,
    Collect,
    Collected,
    Commit,
    Dismissal,
    Failed,
    Finished,
    Join,
    Joined,
    Lend,
    Ping,
    Refused,
    Returned,
    Unwanted,
    Working,
    check_size,
    pickled_error,
)

Compute = Callable[[Sequence[Part]], Any]
"""A function of all that was committed to the result."""

_PROGRESS_SECONDS = 0.25
_LEAST_SECONDS = 10.0  # of silence; the lender may be busy with a rank that was lost
_PINGS = 4  # that a lender may leave without an answer, in the seconds of silence that are allowed


class Borrower:
    """Borrows leases; iterating over it yields them until no unit is left.

    Args:
        link: The connection to the lender, to whom this rank has reported.
        settings: What must be equal on all ranks, by name.
        record: What must be equal in the ledger, by name.
        units: The number of units of the whole evaluation.

    Raises:
        WorldError: The lender is gone.
        UsageError: It has refused this rank.

    Attributes:
        rank: The number of this rank.
        attempt: Which attempt at the lease this one is, from 1 up.
        is_kept: Whether what it commits is written to a disk.
        stored: What earlier runs have evaluated, without states and files.
        units: The number of units that these have left, which the caller finds.
    """

    def __init__(
        self, link: Link, settings: Mapping[str, str], record: Mapping[str, str], units: int
    ) -> None:
        self._link, self._seconds = link, 60.0
        self._unwanted: set[int] = set()
        self._failed = False
        self._gone: WorldError | None = None  # why nothing more can come from the lender
        self._told, self.attempt, self.units = 0.0, 0, units
        self._end: Lend | Finished | None = None  # the last lease, or the end of the evaluation
        self._send(Join(settings, units, record))
        answer = self._receive(Joined, Refused)
        if isinstance(answer, Refused):
            raise UsageError(answer.what)
        self.rank, timeout, self._is_alone, self.is_kept, self.stored = answer
        self._seconds = max(timeout, _LEAST_SECONDS)

    def __iter__(self) -> Iterator[Lease]:
        while not self._failed and self._end is None:
            message = self._ask("wait for a lease")
            if isinstance(message, Finished) or message.start >= self.units:
                self._end = message
                return
            self.attempt = message.attempt
            lease = Lease(message.number, message.start, message.stop)
            with traces.span("lease", "lease", **lease._asdict(), attempt=message.attempt):
                yield lease

    def progress(self, lease: Lease, done: int) -> bool:
        """Say how many units of the lease are done, often enough, and no more often.

        Returns:
            Whether no other rank was first with the lease; this is not waited for.
        """
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self._send(Working(lease.number, done))
        while (message := self._link.get(0.0)) is not None and self._end is None:
            if isinstance(message, Unwanted):
                self._unwanted.add(message.number)
            elif isinstance(message, Finished):
                self._end = message
            elif isinstance(message, Dismissal):  # the next message tells why
                return False
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
        self._send(Commit(lease.number, part._replace(states=states), waited))

    def fail(self, unit: int | None, what: str) -> None:
        """Say that this rank raised an exception; it takes no more leases."""
        self._failed = True
        self._send(Failed(unit, what))

    def finish(self, compute: Compute) -> Finished:
        """Wait for the end of the evaluation, and compute its result if this rank is lent it."""
        while not isinstance(self._end, Finished):
            if self._end is not None:
                self._compute(self._end, compute)
            self._end = self._ask("wait for the end")
        return self._end

    def _compute(self, lease: Lend, compute: Compute) -> None:
        parts, is_last = list[Part](), False
        while not is_last:
            self._send(Collect(len(parts)))
            message = self._receive(Collected)
            if isinstance(message, Finished):  # another rank was first
                return
            parts += message.parts
            is_last = message.is_last
        try:
            with traces.span("metric", "compute"):
                value = packed(compute(parts))
            check_size(value, "the metrics' results", "have a metric write its result to a file")
            result = Returned(value)
        except Exception as error:
            result = Returned(None, pickled_error(error))
        self._send(Commit(lease.number, result))

    def _ask(self, what: str) -> Any:
        """Ask for a lease, or for the end, and wait for the answer."""
        with traces.span("waiting", what):
            self._send(Ask(self.units))
            return self._receive(Lend)

    def _receive(self, *kinds: type) -> Any:
        """Return the next message of some kinds, or the end of the evaluation.

        Raises:
            WorldError: The lender is gone, or silent.
        """
        unanswered = 0
        while not isinstance(self._end, Finished):
            if self._gone is not None:
                raise self._gone
            message = self._link.get(self._seconds / _PINGS)
            if isinstance(message, Finished):  # which comes once
                self._end = message
            elif isinstance(message, kinds):
                return message
            if isinstance(message, Dismissal):
                self._gone = WorldError(
                    "the lender of leases is gone; it runs in rank 0, or in the leader. What was "
                    "committed is in the ledger, if there is one, and the same command goes on "
                    "from there"
                )
            # Not the time, in which this process may have been stopped.
            unanswered = unanswered + 1 if message is None else 0
            if unanswered == _PINGS:
                self._gone = WorldError(
                    f"the lender of leases has been silent for {self._seconds:g} s; see whether "
                    f"rank 0, or the leader, is stopped. The ledger, if any, has what was committed"
                )
            if message is None:
                self._send(Ping())
        return self._end

    def _send(self, message: Any) -> None:
        """Send a message; that the lender is gone is noticed when its answer is received."""
        with suppress(OSError):
            self._link.send(message)
