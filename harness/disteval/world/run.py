"""One order under way on the ranks of a world, and what comes of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from disteval.errors import WorldError
from disteval.world.channel.leader import OnNote, OnProgress
from disteval.world.channel.link import why_unreachable
from disteval.world.channel.messages import Hello, Note, Order, Progress, Reply, unpacked
from disteval.world.postmortem import RankStatus, examine, record_failure

if TYPE_CHECKING:
    from disteval.world.world import World

# After the first failure the others get this long to reply, so that the report is complete.
_GRACE_SECONDS = 1.0
_TICK_SECONDS = 0.05
_LOOK_SECONDS = 0.5  # between two looks at processes that may have ended


class Results(list[Any]):
    """What a function returned on each rank, in rank order; None for a rank that did not return.

    Attributes:
        returned: The ranks that returned.
        lost: What is known of each rank that was lost, in the order in which that was noticed; one
            that came back and was lost again is there twice.
    """

    def __init__(self, values: Iterable[Any], returned: Iterable[int]) -> None:
        super().__init__(values)
        self.returned = set(returned)
        self.lost: list[RankStatus] = []


class Run:
    """An order in lock step, which fails with the first rank that raises or is lost.

    Args:
        world: The ranks.
        orders: One a rank, in rank order.
        on_progress: Called with each progress message.
        on_note: Called with each note.

    Attributes:
        replies: The replies, by rank.
        lost: The ranks that were lost, in the order in which that was noticed, with how the network
            to their hosts failed; an empty text if it did not.
        arrived: When each reply was received, as of `time.monotonic_ns`.
    """

    def __init__(
        self,
        world: World,
        orders: Sequence[Order],
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
    ) -> None:
        self.replies: dict[int, Reply] = {}
        self.lost: dict[int, str] = {}
        self.arrived: dict[int, int] = {}
        self._world, self._channel, self._orders = world, world._channel, orders
        self._on_progress, self._on_note = on_progress, on_note
        self._launcher = world._launcher
        self._ended: set[int] = set()
        self._next_look = time.monotonic() + _LOOK_SECONDS

    def carry_out(self, timeout: float) -> None:
        """Send the orders, and wait until every rank has replied.

        Args:
            timeout: Seconds without a reply, a progress message or a note until the deadline.
        """
        ranks: dict[int, list[int]] = {}  # of each order, which all ranks may share
        for rank, order in enumerate(self._orders):
            ranks.setdefault(id(order), []).append(rank)
        for each in ranks.values():
            self._channel.send(self._orders[each[0]], *each)
        for rank, error in self._channel.gone.items():  # since an earlier order
            self.lose(rank, error)
        deadline, grace_given = time.monotonic() + timeout, False
        while self._missing:
            left = deadline - time.monotonic()
            # Without time left too: this process may have been stopped while replies came.
            for rank, message in self._channel.poll(min(max(left, 0.0), _LOOK_SECONDS)):
                self.take(rank, message)
                is_alive = message is None or isinstance(message, (Reply, Progress, Note))
                if is_alive and not self.failed:
                    deadline = time.monotonic() + timeout
            self._look_at(self._missing)
            if self.failed and not grace_given:
                grace_given = True
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
            if left <= 0 and deadline <= time.monotonic():
                break
        # The time may have been too short for two looks.
        for rank in sorted(self._missing):
            if self._launcher.how_ended(rank):
                self.lose(rank, EOFError())

    @property
    def _missing(self) -> set[int]:
        """The ranks that have neither replied nor been lost."""
        return {*range(len(self._orders))} - self.replies.keys() - self.lost.keys()

    def _look_at(self, ranks: set[int]) -> bool:
        """Lose ranks whose processes have ended, though a child of theirs keeps a connection open.

        Each is lost at the second look, since what it has sent before comes first.

        Returns:
            Whether it is time for a look.
        """
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        before, self._ended = self._ended, {r for r in ranks if self._launcher.how_ended(r)}
        for rank in sorted(before & self._ended):
            self.lose(rank, EOFError())
        return True

    @property
    def failed(self) -> bool:
        """Whether a rank was lost or raised."""
        return bool(self.lost) or any(reply.trace for reply in self.replies.values())

    @property
    def in_step(self) -> bool:
        """Whether every rank replied, with a value or with an exception."""
        return len(self.replies) == len(self._orders) and not self.lost

    def finish(self) -> Results:
        """Return the value of each rank, once every rank has returned one."""
        ranks = range(len(self._orders))
        values = [self.replies[rank].value or b"" for rank in ranks]
        return Results(
            [unpacked(v, f"what rank {r} returned", in_step=True) for r, v in enumerate(values)],
            ranks,
        )

    def take(self, rank: int, message: Any) -> None:
        """Take a message of a rank, or the error of receiving one."""
        if isinstance(message, (EOFError, OSError)):
            self.lose(rank, message)
        elif isinstance(message, Reply):
            self.arrived[rank] = time.monotonic_ns()
            self.reply(rank, message)
        else:
            self._channel.take(rank, message, self._on_progress, self._on_note)

    def reply(self, rank: int, reply: Reply) -> None:
        """Take a reply."""
        self.replies[rank] = reply

    def lose(self, rank: int, error: Exception) -> None:
        """Take notice that nothing more can be received from a rank, and why."""
        self.lost[rank] = why_unreachable(error, self._channel.hellos[rank].host)


class Lends(Protocol):
    """What answers ranks that borrow leases, see `disteval.leases.Lender`."""

    outcome: Any

    def turn(
        self, heard: Iterable[tuple[int, Any]], now: float
    ) -> Iterable[tuple[Any, Sequence[int]]]:
        """Take what ranks have sent, and return what they are to be sent."""

    def lose(self, rank: int, why: str, now: float) -> None:
        """Take notice that a rank is lost."""

    def answering(self, now: float) -> Sequence[int]:
        """Return the ranks that take part, and were heard of lately."""


class TolerantRun(Run):
    """An order that goes on without ranks that are lost, and is given to those that come later.

    Args:
        world: As for `Run`.
        orders: As for `Run`.
        on_progress: As for `Run`.
        on_note: As for `Run`.
        on_lost: Called with each rank that is lost, as soon as that is noticed.
        lender: Answers what ranks ask of it, and ranks that this world has not started.

    Attributes:
        results: What has come of it so far.
    """

    def __init__(
        self,
        world: World,
        orders: Sequence[Order],
        on_progress: OnProgress | None,
        on_note: OnNote | None,
        on_lost: Callable[[RankStatus], None] | None,
        lender: Lends | None,
    ) -> None:
        super().__init__(world, orders, on_progress, on_note)
        self.results = Results([None] * len(orders), ())
        self._on_lost, self._lender = on_lost, lender
        self._there: set[int] = set()  # that have their order, and neither replied nor were lost
        self._awaited = {*range(len(orders))}  # that have not reported yet
        self._late = False
        self._heard = time.monotonic()

    def go_on(self, until: Callable[[Results], bool] | None, grace: float, timeout: float) -> bool:
        """Go on until no rank is left, or until ``until`` is true and ``grace`` has passed.

        Args:
            until: As for `World.run`.
            grace: As for `World.run`.
            timeout: Seconds of silence that end it without ``until``.

        Returns:
            Whether ranks are left that have not returned.
        """
        deadline, is_over = math.inf, False
        for rank in [*self._channel.hellos]:
            self._begin(rank)
        while self._is_needed(is_over):
            heard = [*self._channel.poll(_TICK_SECONDS)]
            for rank, message in heard:
                self._heard = time.monotonic()
                if rank < len(self._orders):
                    self.take(rank, message)
            self._feed(heard)
            self._look_for_the_missing()
            # No rank has sent anything for so long, of ranks that should be there.
            silent = time.monotonic() - self._heard if self._late or not self._awaited else 0.0
            if not is_over and (until(self.results) if until else silent > timeout):
                is_over, deadline = True, time.monotonic() + grace
            if time.monotonic() > deadline:
                break
        is_left = bool(self._there or self._awaited)
        self._give_up(grace)
        return is_left

    def _feed(self, heard: Sequence[tuple[int, Any]]) -> None:
        """Pass the lender what ranks have sent, and send what it answers."""
        if self._lender is None:
            return
        # It is told why a rank of this world was lost when that is known.
        told = [(r, m) for r, m in heard if r >= len(self._orders) or not isinstance(m, Exception)]
        for message, ranks in self._lender.turn(told, time.monotonic()):
            self._channel.send(message, *ranks)

    def _is_needed(self, is_over: bool) -> bool:
        if self._there or self._waits_for_others():
            return True
        if is_over:
            # Ranks that somebody else started would look for their leader for a minute.
            return self._launcher.attached and bool(self._awaited)
        may_come_back = self._world.restarts and len(self.results.returned) < len(self._orders)
        return bool(self._awaited) or may_come_back

    def _waits_for_others(self) -> bool:
        """Return whether ranks of other worlds borrow leases, or have not got the result."""
        if self._lender is None:
            return False
        there = [r for r in self._lender.answering(time.monotonic()) if r >= len(self._orders)]
        if self._lender.outcome is None:
            return bool(there)
        return not all(map(self._channel.has_delivered, there))

    def take(self, rank: int, message: Any) -> None:
        """See `Run.take`; a rank may also report, perhaps not for the first time."""
        if isinstance(message, Hello):
            if rank in self._there:  # its connection was replaced before it was seen to close
                self._lose(rank, "another process took its place")
            self._begin(rank)
        else:
            super().take(rank, message)

    def _begin(self, rank: int) -> None:
        self._awaited.discard(rank)
        self._there.add(rank)
        self._channel.send(self._orders[rank], rank)
        if (error := self._channel.gone.get(rank)) is not None:  # since an earlier order
            self.lose(rank, error)

    def reply(self, rank: int, reply: Reply) -> None:
        """See `Run.reply`."""
        if reply.value is None:
            self._lose(rank, "", reply)
            return
        try:
            self.results[rank] = unpacked(reply.value, "what it returned")
        except WorldError as error:
            self._lose(rank, str(error))
        else:
            self.results.returned.add(rank)
            self._there.discard(rank)

    def lose(self, rank: int, error: Exception) -> None:
        """See `Run.lose`."""
        if rank in self._there:  # and has not replied before
            host = self._channel.hellos[rank].host
            self._lose(rank, why_unreachable(error, host) or self._world._how_lost(rank))

    def _lose(self, rank: int, how: str, reply: Reply | None = None) -> None:
        self._there.discard(rank)
        self._awaited.discard(rank)
        status = RankStatus(rank, self._channel.hellos.get(rank), reply, end=how)
        examine(self._world.folder, [status])
        self._note(status)

    def _note(self, status: RankStatus) -> None:
        self.results.lost.append(status)
        if self._lender is not None:
            self._lender.lose(status.rank, status.how, time.monotonic())
        if self._world._recorder is not None:
            record_failure(self._world._recorder, status.post_mortem)
        if self._on_lost is not None:
            self._on_lost(status)

    def _give_up(self, grace: float) -> None:
        """Note what the ranks were doing that did not return in time."""
        for rank in [] if self._late else sorted(self._awaited):
            self._note(RankStatus(rank, end="had not reported before the end"))
        found = [RankStatus(rank, self._channel.hellos[rank]) for rank in sorted(self._there)]
        examine(self._world.folder, found)
        for status in found:
            status.end = "" if status.stopped else f"had not returned {grace:g} s after the end"
            self._note(status)

    def _look_for_the_missing(self) -> None:
        """Note ranks whose processes ended before they reported, or that are late."""
        if not self._look_at(self._there):
            return
        for rank in sorted(self._awaited):
            if how := self._launcher.how_ended(rank):
                self._lose(rank, f"{how}, before it reported")
        if not self._late and time.monotonic() > self._world._start_by:
            self._late = True
            within = f"within {self._world._start_seconds:g} s"
            for rank in sorted(self._awaited):
                self._note(RankStatus(rank, end=f"did not report {within}"))
