"""Evaluation in leases: ranks ask for batches when they have finished others, and may be lost."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Counted, certify, describe_faults, not_once, prove
from disteval.data.batching import Batch, Picked, Plan
from disteval.data.loading import Loader
from disteval.data.predictions import Sink
from disteval.default_backend import get_dist_backend
from disteval.errors import CoverageError, RankError, UsageError, describe_error
from disteval.evaluation.agreement import Failure
from disteval.evaluation.dealing import Dealing
from disteval.evaluation.leasing import Leasing
from disteval.evaluation.result import Evaluation
from disteval.evaluation.task import Task
from disteval.evaluation.work import Progress, Work, reporting
from disteval.leases.book import Lease
from disteval.leases.borrower import Borrower, Part
from disteval.leases.lender import Lender
from disteval.leases.messages import Finished
from disteval.metrics.totals import add_totals, compute_totals, take_totals
from disteval.worlds import control_directory
from disteval.worlds.address import own_address
from disteval.worlds.channel.connection import read_address, write_address


def run_leases(
    task: Task,
    directory: Path,
    rank: int | None = None,
    *,
    patience: float = 0.0,
    progress: bool | Progress = False,
) -> Evaluation:
    """Evaluate leases of a task until all samples are evaluated, without any backend.

    Args:
        task: What to evaluate, the same on every rank.
        directory: Where the address and the key of the lender are, see `disteval.leases.Lender`.
        rank: This rank; None takes a number that no rank has.
        patience: The seconds in which the lender must begin to listen.
        progress: See `disteval.evaluate`.

    Raises:
        UsageError, RankError, CoverageError: As `disteval.evaluate` raises them.
        WorldError: The lender can't be reached or is gone, or no rank is left.
    """
    alone = get_dist_backend("non_dist")
    dealing = Dealing(
        task.batch_size, task.mode, task.fixed_shape, task.pad, task.shard, task.max_tokens,
        task.length, task.sort_by_length, task.workers, task.limit,
    )  # fmt: skip
    work = Work(
        task.predict, task.samples, task.metrics, alone, dealing, task.collate, task.update, None,
        progress, is_compared=True,
    )  # fmt: skip
    Leasing().settings(work)
    return _Leased(work).evaluate(directory, rank, patience)


def evaluate_in_leases(work: Work, leasing: Leasing) -> Evaluation:
    """Evaluate leases that rank 0 lends; every rank must call it, once ranks agree.

    Address and key of the lender travel by the backend. No collective follows.
    """
    leased = _Leased(work)
    backend = work.backend
    with ExitStack() as stack:
        directory = _meet(backend, leasing, stack)
        return leased.evaluate(directory, backend.rank, 0.0)


class _Leased:
    """An evaluation on one rank: its plan is that of one rank that is alone."""

    def __init__(self, work: Work) -> None:
        assert work.opened is not None and work.size is not None
        self._work, self._samples, self._size = work, work.opened, work.size
        self._plan: Plan = work.dealing.plan(work.opened, work.size, work.backend, whole=True)
        self._own: Failure | None = None

    def evaluate(self, directory: Path, rank: int | None, patience: float) -> Evaluation:
        """Borrow leases and evaluate them, until there is a result."""
        work = self._work
        settings = {str(name): repr(value) for name, value in work.settings.items()}
        with Borrower(directory, rank, settings, len(self._plan), patience) as borrower:
            begin = time.perf_counter()
            with reporting(work.progress, borrower.rank, None) as report:
                self._borrow(borrower, report)
                finished = borrower.finish(self._compute)
        results = self._results(finished)
        return Evaluation(
            metrics=results,
            size=self._size,
            evaluated=self._size,
            padded=self._plan.samples - self._size,
            world_size=finished.report.ranks,
            batch_size=work.dealing.batch_size,
            seconds=time.perf_counter() - begin,
            stored=finished.report.resumed,
            leases=finished.report,
        )

    def _borrow(self, borrower: Borrower, report: Progress) -> None:
        """Evaluate leases until there are none, or this rank fails."""
        seen, workers = 0, self._work.dealing.workers
        read = self._samples.reader(reuse=not workers)
        with closing(Loader(read, workers)) as loader:
            for lease in borrower:
                feed = _LeaseFeed(self._samples, self._plan, lease, borrower, loader)
                self._own = self._evaluate(feed, lease, borrower, partial(_advance, report, seen))
                if self._own is not None:
                    borrower.fail(feed.unit, self._own.what)
                    return
                seen += feed.seen

    def _evaluate(
        self, feed: _LeaseFeed, lease: Lease, borrower: Borrower, report: Progress
    ) -> Failure | None:
        """Evaluate one lease and commit it, unless another rank was first."""
        work = self._work
        counted, failure = work.run(feed, Sink(), report, borrower.rank)
        if failure is not None:
            return failure
        if not feed.is_whole:
            work.group.reset_to_sums()
            return None
        try:
            totals = pickle.dumps(take_totals(work.metrics, lease.start), protocol=5)
        except Exception as error:
            return Failure(f"failed at the end of a lease: {describe_error(error)}", error)
        borrower.commit(lease, totals, counted.certificate(), {})
        return None

    def _compute(self, parts: Iterable[Part]) -> Any:
        """Prove that every sample was counted once, and compute the metrics' results."""
        metrics = self._work.metrics
        self._work.group.reset_to_sums()
        totals, at, found = take_totals(metrics, 0), 0, []
        for start, stop, data, certificate in parts:
            if start != at:
                raise CoverageError(f"batch {at} is in no lease, or in two; please report this")
            at = stop
            totals = add_totals(totals, pickle.loads(data))
            found.append((start, stop, Certificate(*certificate)))
        self._prove(at, found)
        return compute_totals(metrics, totals)

    def _prove(self, units: int, found: Sequence[tuple[int, int, Certificate]]) -> None:
        certificates = [certificate for *_, certificate in found]
        if units == len(self._plan) and prove(certificates, self._size):
            return
        planned = [self._ids(start, stop) for start, stop, _ in found]
        for (start, stop, certificate), ids in zip(found, planned, strict=True):
            if certify(ids) != certificate:
                raise CoverageError(
                    f"the rank that evaluated batches {start} to {stop - 1} counted "
                    f"{certificate.counted} samples, and not once each of the {len(ids)} samples "
                    f"of these batches; its process may have changed the samples or their ids"
                )
        faults = describe_faults(planned, self._size)
        raise not_once(sum(map(len, planned)), self._size, faults or "the proof failed")

    def _ids(self, start: int, stop: int) -> Any:
        counted = Counted()
        for picked in self._plan.between(start, stop):
            counted.add(picked.indices[: picked.counted])
        return counted.all()

    def _results(self, finished: Finished) -> dict[str, Any]:
        if finished.value is not None:
            found: dict[str, Any] = pickle.loads(finished.value)
            return found
        error = pickle.loads(finished.error or b"")
        if isinstance(error, RankError) and self._own is not None:
            raise error from self._own.error
        raise error


class _LeaseFeed:
    """The batches of one lease, see `Feed`; it ends early if another rank was first.

    Attributes:
        unit: The batch that was handed out last; the first one before that.
        is_whole: Whether all batches were handed out.
    """

    def __init__(
        self, samples: Any, plan: Plan, lease: Lease, borrower: Borrower, loader: Loader
    ) -> None:
        self.total: int | None = None
        self.seen, self.unit, self.is_whole = 0, lease.start, False
        self._samples, self._plan, self._lease = samples, plan, lease
        self._borrower, self._loader = borrower, loader
        self._size = len(samples)

    def __iter__(self) -> Generator[Batch, None, None]:
        lease, borrower = self._lease, self._borrower
        picks = _Slice(self._plan, lease.start, lease.stop)
        with closing(self._loader.load(picks)) as batches:
            for self.unit, picked in enumerate(picks, lease.start):
                batch = next(batches)
                self.seen += len(picked.indices)
                yield batch
                borrower.progress(lease, self.unit + 1 - lease.start)
                if not borrower.is_wanted(lease):
                    return
        if len(self._samples) != self._size:
            raise UsageError(
                f"the data set has {len(self._samples)} samples at the end, and had {self._size} "
                f"at the beginning; do not change it while it is evaluated"
            )
        self.is_whole = True


def _advance(report: Progress, before: int, done: int, _total: int | None) -> None:
    report(before + done, None)


class _Slice:
    """Some consecutive batches of a plan; see `Plan`."""

    def __init__(self, plan: Plan, start: int, stop: int) -> None:
        self._plan, self._start, self._stop = plan, start, stop

    @property
    def samples(self) -> int:
        return sum(len(picked.indices) for picked in self)

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Picked]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Picked]:
        return self._plan.between(self._start + first, self._start + last)


def _meet(backend: BaseDistBackend, leasing: Leasing, stack: ExitStack) -> Path:
    """Start the lender on rank 0, and return where its address is on this rank."""
    own = control_directory.create() if backend.rank == 0 else None
    if own is not None:
        stack.callback(own.remove)
    where, host = backend.broadcast_object((own and str(own.path), _this_host()), src=0)
    path = Path(where)
    is_near = _this_host() == host and path.is_dir()
    near = backend.all_gather_object(is_near)
    address, failure = "", None
    if own is not None:
        try:
            stack.enter_context(
                Lender(
                    leasing.folder,
                    path,
                    None if all(near) else _address(),
                    timeout=leasing.timeout,
                    ranks_per_lease=leasing.ranks_per_lease,
                    expected=backend.world_size,
                )
            )
            address = read_address(path)
        except Exception as error:  # the other ranks wait for the address
            failure = f"could not lend leases: {describe_error(error)}"
    address, failure = backend.broadcast_object((address, failure), src=0)
    if failure is not None:
        raise RankError(0, failure)
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
    return own_address(os.environ.get("DISTEVAL_LEADER", "").rpartition(":")[0] or None)
