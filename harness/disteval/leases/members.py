"""The ranks that borrow leases, as the lender knows them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disteval.errors import RankError, WorldError
from disteval.leases.book import Counts, Lease
from disteval.world.channel.messages import Commit, Hello

_log = logging.getLogger("disteval.leases")
_REMEDY = "give a longer Leases(timeout=…) (on the command line, --timeout)"
_MOST = 3  # so many ranks that raise an exception, or are silent, at one unit end the evaluation


OnEvent = Callable[[str, int, str], None]
"""Called when a rank has ``joined`` or ``failed``, was ``lost``, or is ``silent`` or ``slow``.

The arguments are that word, the rank, and what is known of it.
"""


def _log_slow(kind: str, rank: int, what: str) -> None:
    if kind == "slow":
        _log.warning("rank %d %s", rank, what)


@dataclass
class Member:
    """A rank that takes part.

    Attributes:
        rank: Its number.
        holder: The rank under which the book knows what it holds: the first of its group, of which
            all hold a lease, or its own once it holds the result.
        name: What it is called in messages.
        heard: When it was last heard of.
        is_there: Whether it is connected.
        waits: Whether it has asked, and was not answered yet.
        lease: What it was lent last and has not reported on.
        report: Its commit, while the other ranks of its group have not sent theirs.
        failure: Why it takes no more leases; None while it does.
        silent_at: The units of which it was at one when it lost its lease because it sent nothing;
            None if it has sent something since.
        has_result: Whether it was sent the end of the evaluation.
    """

    rank: int
    holder: int
    name: str
    heard: float
    is_there: bool = True
    waits: bool = False
    lease: Lease | None = None
    report: Commit | None = None
    failure: str | None = None
    silent_at: range | None = None
    has_result: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether it can be lent something."""
        return self.waits and self.failure is None


class Members:
    """All ranks, in groups of consecutive ones that hold a lease together.

    Args:
        timeout: The seconds of silence after which a rank is lost.
        size: The number of ranks of a group.
        expected: The number of ranks that were started; None if it is not known.
        on_event: Called with what happens to ranks.

    Attributes:
        by_rank: The ranks that have taken part, by their numbers.
        hellos: What each rank has said of itself.
        coming: The ranks that have reported and have not joined yet, and when they reported.
        absent: The ranks that have ended before they could take part.
        lost: The ranks that were lost, and how, as texts.
        failed: The ranks that raised an exception, the units at which, and the exceptions.
    """

    def __init__(
        self, timeout: float, size: int, expected: int | None, on_event: OnEvent | None
    ) -> None:
        self.by_rank: dict[int, Member] = {}
        self.hellos: dict[int, Hello] = {}
        self.coming: dict[int, float] = {}
        self.absent: set[int] = set()
        self.lost: list[str] = []
        self.failed: list[tuple[int, int | None, str]] = []
        self.on_event: OnEvent = on_event or _log_slow
        self._timeout, self._size, self._expected = timeout, size, expected
        self._alive_at = -math.inf

    def add(self, rank: int, now: float) -> Member:
        """Take in a rank, perhaps in the place of one that was lost."""
        before, hello = self.by_rank.get(rank), self.hellos[rank]
        name = f"rank {rank} (process {hello.pid} on {hello.host})"
        member = Member(rank, rank - rank % self._size, name, now)
        if before is not None and self._size > 1:  # the others of its group stay without leases
            member.failure = before.failure
        self.by_rank[rank] = member
        self.coming.pop(rank, None)
        self.absent.discard(rank)
        self.on_event("joined", rank, member.name)
        return member

    def group(self, group: int) -> list[Member]:
        """Return the members of a group, as far as they are there."""
        ranks = range(group * self._size, (group + 1) * self._size)
        return [self.by_rank[rank] for rank in ranks if rank in self.by_rank]

    def is_ready(self, group: int) -> bool:
        """Return whether all ranks of a group have asked, and take leases."""
        return sum(each.is_ready for each in self.group(group)) == self._size

    def bench(self, member: Member, why: str) -> None:
        """Lend no more to a rank, and to its group, of which a model needs every rank."""
        for each in self.group(member.rank // self._size):
            if each.failure is None:
                each.failure = why if each is member else f"is in a group with rank {member.rank}"

    def note_lost(self, member: Member, why: str, kind: str = "lost") -> None:
        """Note how a rank was lost."""
        self.lost.append(f"{member.name}: {why}")
        self.on_event(kind, member.rank, why)

    def note_heard(self, member: Member, now: float) -> None:
        """Note that a rank has sent something, and say so if it was thought to be lost."""
        if member.silent_at is not None:
            what = (
                f"went on after {now - member.heard:.0f} s, when its lease had been taken back; if "
                f"it was not stopped, one batch takes longer than {self._timeout:g} s: "
                f"{_REMEDY}"
            )
            self.on_event("slow", member.rank, what)
        member.heard, member.silent_at = now, None

    def note_failed(self, member: Member, unit: int | None, what: str) -> None:
        """Note which exception a rank raised; it takes no more leases."""
        self.failed.append((member.rank, unit, what))
        self.on_event("failed", member.rank, what)
        self.bench(member, what)

    def why_to_end(self, now: float, counts: Counts, *, was_stopped: bool) -> Exception | None:
        """Return why the evaluation can't go on; None if it can.

        It can't if three ranks, or groups of ranks, raised at one unit, or are silent at one, or
        all of several are; or if no rank is left: every rank raised or was lost, or none that takes
        leases was heard of for too long; or if none has come so far, though each has reported.
        """
        members = self.by_rank.values()
        known = {*range(self._expected or 0), *self.by_rank}
        benched = {each.rank for each in members if each.failure is not None}
        gone = {each.rank for each in members if not each.is_there} | self.absent
        groups = {rank // self._size for rank in gone - self.coming.keys()}
        gone = {rank for rank in known if rank // self._size in groups}  # a model needs every rank
        may_come = not self.by_rank and (not self.coming or known - self.coming.keys() - gone)
        left = len(known - benched - gone) // self._size
        silent = [(each.silent_at, each.rank) for each in members if each.silent_at is not None]
        raised = [(range(at, at + 1), rank) for rank, at, _ in self.failed if at is not None]
        if (
            self._most_at_one(raised) >= _MOST
            or self._most_at_one(silent) >= min(_MOST, max(2, left))
            or (self.by_rank and self._expected is not None and known <= benched | gone)
        ):
            return self._reason(counts)
        taking_leases = [each for each in members if each.is_there and each.failure is None]
        heard = [*(each.heard for each in taking_leases), *self.coming.values()]
        last_heard = max(heard, default=-math.inf)
        if was_stopped or may_come or now - last_heard <= self._timeout:
            self._alive_at = now
        return self._reason(counts) if now - self._alive_at > self._timeout else None

    def _most_at_one(self, places: Sequence[tuple[range, int]]) -> int:
        """Return the most groups of ranks that may be at one unit, of units with their ranks."""
        return max(
            (
                len({rank // self._size for others, rank in places if units.start in others})
                for units, _ in places
            ),
            default=0,
        )

    def _reason(self, counts: Counts) -> Exception:
        if not self.by_rank:
            return WorldError(
                f"no rank has begun to evaluate within {2 * self._timeout:g} s: the ranks "
                f"{sorted(self.coming)} make their tasks, or call predict for the first time; if "
                f"that takes longer, {_REMEDY}"
            )
        if not self.failed:
            lost = "; ".join(self.lost) or "nobody asked for a lease"
            return WorldError(
                f"no rank is left, and {counts.done} of {counts.units} batches are committed: "
                f"{lost}. With a ledger, the next run goes on from there. If a batch takes longer "
                f"than {self._timeout:g} s, {_REMEDY}"
            )
        rank, _, what = self.failed[0]
        told = {what}
        for other, _, same in self.failed[1:]:
            what += f"; rank {other} " + ("failed in the same way" if same in told else same)
            told.add(same)
        return RankError(rank, "; ".join([what, *self.lost]))
