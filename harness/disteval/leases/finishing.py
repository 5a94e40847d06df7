"""How an idle rank computes the result, because the lender does not know the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from disteval.leases.ledger import Ledger
from disteval.leases.members import Member, Members
from disteval.leases.messages import Finish

_BYTES = 1 << 23  # of totals that the rank gets at a time, or those of one lease


class Finishing:
    """Sends all committed leases to an idle rank, piece by piece, as it has added them up.

    Args:
        members: The ranks.
        timeout: The seconds of silence after which another rank is asked, too.
    """

    def __init__(self, members: Members, timeout: float) -> None:
        self._members, self._timeout = members, timeout
        self._ledger: Ledger | None = None
        self._units = 0

    def begin(self, ledger: Ledger, units: int, now: float) -> None:
        """Ask an idle rank, unless one is at it that was heard of."""
        self._ledger, self._units = ledger, units
        busy = [each for each in self._members if each.unit is not None]
        if any(now - each.heard <= self._timeout for each in busy):
            return
        for member in self._members:
            if member.waits and member.failure is None:
                member.waits, member.unit, member.heard = False, 0, now
                self.go_on(member)
                return

    def go_on(self, member: Member) -> None:
        """Send the next leases to a rank that computes the result, unless it has all."""
        if self._ledger is None or member.unit is None or member.unit > self._units:
            return
        found, size = list[Any](), 0
        for lease, _, totals, certificate, files in self._ledger.committed(member.unit):
            if found and size + len(totals) > _BYTES:
                break
            size += len(totals)
            member.unit = lease.stop
            found.append((lease.start, lease.stop, totals, tuple(certificate), files))
        is_last = not found or member.unit == self._units
        member.unit += is_last
        member.send(Finish(found, is_last))


@contextmanager
def repeating(call: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function in a thread again and again meanwhile.

    A rank that computes for long says so by it. One that is frozen does not, and loses its turn.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, name="disteval-computing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
