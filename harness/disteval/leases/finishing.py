"""How an idle rank computes the result, because the lender does not know the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
        self._chunks: list[Finish] = []

    def begin(self, ledger: Ledger | None, now: float) -> None:
        """Ask an idle rank, unless one is at it that was heard of."""
        if not self._chunks:
            self._chunks = _in_chunks(ledger)
        busy = [each for each in self._members if each.chunk is not None]
        if any(now - each.heard <= self._timeout for each in busy):
            return
        for member in self._members:
            if member.waits and member.failure is None:
                member.waits, member.chunk, member.heard = False, 0, now
                self.go_on(member)
                return

    def go_on(self, member: Member) -> None:
        """Send the next leases to a rank that computes the result."""
        if member.chunk is not None and member.chunk < len(self._chunks):
            member.send(self._chunks[member.chunk])
            member.chunk += 1


def _in_chunks(ledger: Ledger | None) -> list[Finish]:
    chunks, size = [Finish([], False)], 0
    for lease, _, totals, certificate, files in [] if ledger is None else ledger.committed():
        if chunks[-1].committed and size + len(totals) > _BYTES:
            chunks.append(Finish([], False))
            size = 0
        chunks[-1].committed.append(
            (lease.start, lease.stop, totals, (certificate.counted, certificate.mixed), files)
        )
        size += len(totals)
    chunks[-1] = chunks[-1]._replace(is_last=True)
    return chunks


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
