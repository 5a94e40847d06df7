"""How an idle rank computes the result, because the lender does not know the task."""

from __future__ import annotations

from collections.abc import Sequence

from disteval.leases.members import Member, Members
from disteval.leases.messages import Finish
from disteval.ledger import Ledger, Part

_BYTES = 1 << 23  # of states that the rank gets at a time, or those of one part


class Finishing:
    """Sends all committed parts to an idle rank, piece by piece, as it has added them up.

    Args:
        members: The ranks.
        timeout: The seconds of silence after which another rank is asked, too.
    """

    def __init__(self, members: Members, timeout: float) -> None:
        self._members, self._timeout = members, timeout
        self._parts: Sequence[Part] = ()

    def begin(self, ledger: Ledger, units: int, now: float) -> None:
        """Ask an idle rank, unless one is at it that was heard of.

        The result counts as one more unit than there are.
        """
        self._parts = ledger.parts
        busy = [each for each in self._members if each.sent is not None]
        if any(now - each.heard <= self._timeout for each in busy):
            return
        for member in busy:
            if member.silent_at is None:
                self._members.note_silent(member, range(units, units + 1))
        for member in self._members:
            if member.waits and member.failure is None:
                member.waits, member.sent, member.heard = False, 0, now
                self.go_on(member)
                return

    def go_on(self, member: Member) -> None:
        """Send the next parts to a rank that computes the result, unless it has all."""
        if member.sent is None or member.sent > len(self._parts):
            return
        found, size = list[Part](), 0
        for part in self._parts[member.sent :]:
            if found and size + len(part.states) > _BYTES:
                break
            size += len(part.states)
            found.append(part)
        member.sent += len(found)
        is_last = member.sent == len(self._parts)
        member.sent += is_last
        member.send(Finish(found, is_last))
