"""Evaluation in leases: ranks ask for batches when they have finished others, and may be lost."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from disteval.coverage import Certificate, add_certificates
from disteval.data.contents import CONTENTS, as_text
from disteval.data.predictions import (
    CommittedParts,
    LeaseWriter,
    Predictions,
    Sink,
    Target,
    locked_for_leases,
)
from disteval.default_backend import get_dist_backend
from disteval.errors import CoverageError, HarnessError, RankError, UsageError, describe_error
from disteval.evaluation.agreement import Failure, agree
from disteval.evaluation.canary import all_repeatable
from disteval.evaluation.dealing import Dealing
from disteval.evaluation.leasing import Leases
from disteval.evaluation.pieces import LeaseFeed, Piece, pieces_of
from disteval.evaluation.result import Evaluation, coverage_of
from disteval.evaluation.task import Task
from disteval.evaluation.work import Progress, Work, reporting
from disteval.identity import held_by_all
from disteval.leases.book import Lease
from disteval.leases.borrower import Borrower, Part
from disteval.leases.ledger import NAME
from disteval.leases.lender import Lender
from disteval.leases.messages import Finished
from disteval.metrics.totals import (
    add_totals,
    compute_totals,
    pack_totals,
    take_totals,
    unpack_totals,
)
from disteval.outputs import OUTPUTS
from disteval.worlds import control_directory
from disteval.worlds.address import own_address, resolve
from disteval.worlds.channel.connection import read_address, write_address

_Results = tuple[dict[str, Any], int, int, int | None, int, bool | None]
"""Results, the number of samples, that of padding, the contents, compared, and repeatable."""


def run_leases(
    task: Task,
    directory: Path,
    rank: int | None = None,
    *,
    patience: float = 0.0,
    predictions: Target = None,
    progress: bool | Progress = False,
) -> Evaluation:
    """Evaluate leases of a task until all samples are evaluated, without any backend.

    Args:
        task: What to evaluate, the same on every rank.
        directory: Where the address and the key of the lender are, see `disteval.leases.Lender`.
        rank: This rank; None takes a number that no rank has.
        patience: The seconds in which the lender must begin to listen.
        predictions: See `disteval.evaluate`.
        progress: See there.

    Raises:
        UsageError, RankError, CoverageError: As `disteval.evaluate` raises them.
        WorldError: The lender can't be reached or is gone, or no rank is left.
    """
    alone = get_dist_backend("non_dist")
    dealing = Dealing(
        task.batch_size, task.fixed_shape, task.even_calls, task.by_length,
        task.workers, task.limit, task.predict,
    )  # fmt: skip
    work = Work(
        task.predict, task.samples, task.metrics, alone, dealing, task.collate, task.update,
        predictions, progress, True, task.name,
    )  # fmt: skip
    Leases().settings(work)
    work.canary.compare(work, kept=True)
    leased = _Leased(work)
    with leased.join(directory, rank, patience) as borrower:
        return leased.evaluate(borrower)


def evaluate_in_leases(work: Work, leases: Leases, ledger: Path | None) -> Evaluation:
    """Evaluate leases that rank 0 lends; every rank must call it, once ranks agree.

    Address and key of the lender travel by the backend, and one collective shows that every rank
    has reached it. No collective follows.
    """
    work.held = held_by_all(work.backend, work.held)
    leased = _Leased(work)
    with ExitStack() as stack:
        directory = _meet(work, leases, ledger, stack)
        failure: Exception | None = None
        try:
            borrower = stack.enter_context(leased.join(directory, work.backend.rank))
        except HarnessError as error:  # the other ranks wait for this one
            failure = error
        agree(work.backend, {}, failure)
        return leased.evaluate(borrower)


class _Leased:
    """An evaluation on one rank: its plan is that of one rank that is alone."""

    def __init__(self, work: Work) -> None:
        self._work, self._pieces = work, pieces_of(work)
        self._writer: LeaseWriter | None = None
        if isinstance(work.target, Predictions):
            found = {CONTENTS: work.content, OUTPUTS: work.canary.text}
            self._writer = LeaseWriter(work.target, work.evaluated | found)
        self._own: Failure | None = None

    def join(self, directory: Path, rank: int | None, patience: float = 0.0) -> Borrower:
        """Connect to the lender."""
        settings = {
            name: value if isinstance(value, str) else repr(value)
            for name, value in self._work.settings.items()
        }
        if self._work.look is not None:
            settings[CONTENTS] = self._work.look.text
        settings[OUTPUTS] = self._work.canary.text
        return Borrower(
            directory, rank, settings, len(self._pieces), patience, held=self._work.held
        )

    def evaluate(self, borrower: Borrower) -> Evaluation:
        """Borrow leases and evaluate them, until there is a result."""
        work, begin = self._work, time.perf_counter()
        with reporting(work.progress, borrower.rank, None) as report:
            self._borrow(borrower, report)
            finished = borrower.finish(self._compute)
        resumed = finished.report.resumed
        alone = finished.report.ranks == 1 and not resumed
        results, size, padded, contents, compared, repeatable = self._results(finished)
        told = work.canary.difference, finished.report.difference
        differences = [each for each in told if each is not None]
        return Evaluation(
            metrics=results,
            size=size,
            evaluated=size,
            padded=padded,
            world_size=finished.report.ranks,
            batch_size=work.dealing.batch_size,
            seconds=time.perf_counter() - begin,
            stored=resumed,
            leases=finished.report,
            coverage=coverage_of(size, compared, alone=alone),
            compared=0 if alone else compared,
            digest=as_text(contents),
            difference=None if repeatable is False else max(differences, default=None),
            repeatable=repeatable,
        )

    def _borrow(self, borrower: Borrower, report: Progress) -> None:
        """Evaluate leases until there are none, or this rank fails."""
        seen = 0
        with closing(self._pieces):
            for lease in borrower:
                feed = self._pieces.feed(lease, borrower)
                self._own = self._evaluate(feed, lease, borrower, partial(_advance, report, seen))
                if self._own is not None:
                    borrower.fail(feed.unit, self._own.what)
                    return
                seen += feed.seen

    def _evaluate(
        self, feed: LeaseFeed, lease: Lease, borrower: Borrower, report: Progress
    ) -> Failure | None:
        """Evaluate one lease and commit it, unless another rank was first."""
        work, writer = self._work, self._writer
        counted, failure = work.run(feed, writer or Sink(), report, borrower.rank)
        if failure is not None:
            return failure
        if not feed.is_whole:
            work.group.reset_to_sums()
            if writer is not None:
                writer.drop()
            return None
        try:
            files = {} if writer is None else writer.take()
            totals = take_totals(work.metrics, lease.start)
            note = dict(feed.note or {})
            if work.canary.repeatable is not None:
                note[-1 - borrower.rank] = int(work.canary.repeatable)
            data = pack_totals(totals, note)
        except Exception as error:
            return Failure(f"failed at the end of a lease: {describe_error(error)}", error)
        borrower.commit(lease, data, counted.certificate(), files)
        return None

    def _compute(self, parts: Iterable[Part]) -> Any:
        """Prove that every sample was counted once, and compute the metrics' results."""
        metrics = self._work.metrics
        self._work.group.reset_to_sums()
        totals, at = take_totals(metrics, 0), 0
        pieces, files = list[Piece](), list[Mapping[str, str]]()
        repeatable = list[bool]()
        for start, stop, data, certificate, named in parts:
            if start != at:
                raise CoverageError(f"unit {at} is in no lease, or in two; please report this")
            at = stop
            found, note = unpack_totals(data)
            repeatable += (bool(value) for key, value in (note or {}).items() if key < 0)
            lengths = {key: value for key, value in (note or {}).items() if key >= 0}
            totals = add_totals(totals, found)
            pieces.append(Piece(start, stop, Certificate(*certificate), lengths))
            files.append(named)
        if at != len(self._pieces):
            raise CoverageError(f"unit {at} is in no lease; please report this")
        size, padded = self._pieces.prove(pieces)
        contents = add_certificates([piece.certificate for piece in pieces]).contents
        compared = 0 if self._work.look is None else self._work.look.count
        results = compute_totals(metrics, totals)
        if self._writer is not None:
            self._writer.complete(files, size, [piece.certificate for piece in pieces])
        return results, size, padded, contents, compared, all_repeatable(repeatable)

    def _results(self, finished: Finished) -> _Results:
        """Return the metrics' results, and what is known about the samples."""
        if finished.value is not None:
            found: _Results = pickle.loads(finished.value)
            if self._writer is not None:
                self._writer.clean()
            return found
        error = pickle.loads(finished.error or b"")
        if isinstance(error, RankError) and self._own is not None:
            raise error from self._own.error
        raise error


def _advance(report: Progress, before: int, done: int, _total: int | None) -> None:
    report(before + done, None)


def _meet(work: Work, leases: Leases, ledger: Path | None, stack: ExitStack) -> Path:
    """Start the lender on rank 0, and return where its address is on this rank."""
    backend, target = work.backend, work.target
    own: control_directory.ControlDirectory | None = None
    unmade: HarnessError | None = None
    try:
        if backend.rank == 0:
            own = control_directory.create()
            stack.callback(own.remove)
    except HarnessError as error:  # the other ranks wait for the directory
        unmade = error
    where, host, unmade = backend.broadcast_object((own and own.path, _this_host(), unmade), src=0)
    if unmade is not None:
        raise unmade
    path = Path(where)
    is_near = _this_host() == host and path.is_dir()
    near = backend.all_gather_object(is_near)
    address = ""
    failure: HarnessError | None = None
    if own is not None:
        try:
            if isinstance(target, Predictions):
                is_new = ledger is None or not (ledger / NAME).exists()
                stack.enter_context(locked_for_leases(target, is_new=is_new))
            stack.enter_context(
                Lender(
                    ledger,
                    path,
                    None if all(near) else _address(),
                    timeout=leases.timeout,
                    ranks_per_lease=leases.group_size,
                    expected=backend.world_size,
                    parts=CommittedParts(target) if isinstance(target, Predictions) else None,
                )
            )
            address = read_address(path)
        except UsageError as error:  # the other ranks wait for the address
            failure = error
        except Exception as error:
            failure = RankError(0, f"could not lend leases: {describe_error(error)}")
    address, failure = backend.broadcast_object((address, failure), src=0)
    if failure is not None:
        raise failure
    if not is_near:
        mine = control_directory.create()
        stack.callback(mine.remove)
        path = mine.path
        write_address(path, address)
    return path


def _this_host() -> str:
    """Return what is equal in all processes of this host, and in no other."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def _address() -> str:
    """Return the address of this host that other hosts reach."""
    host = os.environ.get("DISTEVAL_LEADER", "").rpartition(":")[0]
    return own_address(resolve(host) if host else None)
