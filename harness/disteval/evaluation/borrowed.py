"""Ranks that borrow units from a lender, so that any of them may be lost."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from disteval.data.contents import CONTENTS
from disteval.data.plan import Batch, dealt
from disteval.data.predictions import locked
from disteval.data.sources import NOTHING, Indexed
from disteval.default_backend import get_dist_backend
from disteval.errors import HarnessError, RankError
from disteval.evaluation.agreement import Failure, agree, on_rank_0
from disteval.evaluation.evaluate import carry_out
from disteval.evaluation.result import Evaluation, read_result
from disteval.evaluation.schedules import Finish, Leases, Schedule
from disteval.evaluation.task import Task
from disteval.evaluation.work import Progress, Target, Work
from disteval.host import this_machine
from disteval.leases.book import Lease
from disteval.leases.borrower import Borrower
from disteval.leases.lender import Lender, LenderThread
from disteval.ledger import Part, stored_of
from disteval.outputs import OUTPUTS
from disteval.world.address import LOOPBACK, own_address, resolve
from disteval.world.channel.leader import Channel
from disteval.world.channel.link import Address, Link, connect


class Borrowed(Schedule):
    """Units that a rank borrows from a lender, which may give them to another rank as well.

    So no rank knows how many it gets, and what a rank has done of a lease that it can't commit is
    not kept.

    Args:
        work: What is evaluated.
        link: The connection to the lender, to whom this rank has reported.
        turns: The number of ranks of its group that take units in turn.

    Raises:
        HarnessError: The lender is gone, or has refused this rank.
    """

    def __init__(self, work: Work, link: Link, turns: int = 1) -> None:
        self._work, self.source, self._turns = work, work.source, turns
        settings = {
            name: value if isinstance(value, str) else repr(value)
            for name, value in work.settings.items()
        }
        settings[CONTENTS] = work.look.text if work.look else ""
        settings[OUTPUTS] = work.canary.text
        source = work.source
        source.begin(NOTHING)
        assert source.units is not None  # no stream that every rank reads whole
        borrower = self._borrower = Borrower(link, settings, work.record(), source.units)
        if borrower.stored:  # which is left out
            source.begin(stored_of(borrower.stored))
        borrower.units = source.units
        self.rank, self.is_kept = borrower.rank, borrower.is_kept
        self._lease = Lease(-1, 0, 0)
        self._unit: int | None = None

    def leases(self) -> Iterator[Iterator[tuple[int, bool]]]:
        """Yield the units of each lease, see `Schedule`."""
        for lease in self._borrower:
            self._lease = lease
            self._unit = self._lease.start
            mine = dealt(lease.units, self._turns, self.rank % self._turns, even=True)
            yield ((lease.start + unit, counts) for unit, counts in mine)
        self._unit = None

    def after(self, batch: Batch) -> Literal["go on", "drop"]:
        """Give a sign of life, and drop the lease if another rank was first; see `Schedule`."""
        self._unit = batch.unit
        done = batch.unit - self._lease.start + isinstance(self.source, Indexed)
        return "go on" if self._borrower.progress(self._lease, done) else "drop"

    def commit(self, part: Part) -> None:
        """Send what the lease amounts to."""
        waited = self.source.waited if isinstance(self.source, Indexed) else 0.0
        self._borrower.commit(self._lease, part, waited)

    def complete(self, finish: Finish, failure: Failure | None) -> Evaluation:
        """Wait for the result, which the lender may have this rank compute; see `Schedule`."""
        work, borrower = self._work, self._borrower
        if failure is not None:
            borrower.fail(self._unit, failure.what)
        finished = borrower.finish(finish)
        if work.writer is not None:
            work.writer.clean()
        if finished.value is None:
            error = pickle.loads(finished.error or b"")
            if isinstance(error, RankError) and failure is not None:
                raise error from failure.error
            raise error
        told = finished.report
        return replace(
            read_result(finished.value),
            world_size=told.ranks, stored=told.resumed, since=told.since, leases=told,
        )  # fmt: skip


def run_leases(
    task: Task, link: Link, *, predictions: Target = None, progress: bool | Progress = False
) -> Evaluation:
    """Evaluate leases of a task until all samples are evaluated, without any backend.

    Args:
        task: What to evaluate, the same on every rank.
        link: The connection to the lender, to whom this rank has reported.
        predictions: See `disteval.evaluate`.
        progress: See there.

    Raises:
        UsageError, RankError, CoverageError: As `disteval.evaluate` raises them.
        WorldError: The lender is gone, or no rank is left.
    """
    work = Work(task, get_dist_backend("non_dist"), predictions, progress, is_kept=True)
    with closing(work):
        Leases().of_work(work, None)
        if work.look is not None:
            work.canary.compare(work)
        return carry_out(work, Borrowed(work, link))


@contextmanager
def borrowing(work: Work, leases: Leases, ledger: Path | None) -> Iterator[Borrowed]:
    """Yield leases that rank 0 lends; every rank must call it, once ranks agree.

    Address and key of the lender travel by the backend, and one collective shows that every rank
    has reached it. No collective follows.
    """
    backend = work.backend
    is_one_host = len(set(backend.all_gather_object(this_machine()))) == 1
    link: Link | None = None  # that of rank 0
    with ExitStack() as stack:

        def lend() -> Address:
            nonlocal link
            if work.folder is not None:
                stack.enter_context(locked(work.folder))
            channel = Channel(backend.world_size)
            place = Address(LOOPBACK if is_one_host else _address())
            address = channel.listen(place) if backend.world_size > 1 else place
            lender = Lender(
                ledger,
                timeout=leases.timeout,
                ranks_per_lease=leases.group_size,
                in_turns=leases.in_group == "turns",
                expected=backend.world_size,
                predictions=work.folder,
            )
            link = stack.enter_context(LenderThread(lender, channel, leases.timeout)).link
            return address

        address = on_rank_0(backend, lend, "lend leases")
        failure: Exception | None = None
        try:
            if link is None:
                link = stack.enter_context(closing(Link(connect(address))))
            link.report(backend.rank)
            borrowed = Borrowed(work, link, leases.group_size // leases.same)
        except HarnessError as error:  # the other ranks wait for this one
            failure = error
        agree(backend, {}, failure)
        yield borrowed


def _address() -> str:
    """Return the address of this host that other hosts reach."""
    host = os.environ.get("DISTEVAL_LEADER", "").rpartition(":")[0]
    return own_address(resolve(host) if host else None)
