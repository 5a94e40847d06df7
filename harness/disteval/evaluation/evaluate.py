"""The evaluation of a data set by ranks, each of which evaluates some of its batches."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from disteval import traces
from disteval.arguments import check_path, is_switched_on
from disteval.by_sample import drawn
from disteval.contract import BaseDistBackend
from disteval.coverage import (
    Counted,
    as_text,
    fault_of,
    name_some,
    prove,
    unpacked_ids,
)
from disteval.data.collate import Collate, first_rows
from disteval.data.contents import DIGESTS, SHARD_BITS
from disteval.data.length_of import ByLength
from disteval.data.plan import Batch
from disteval.data.predictions import complete
from disteval.data.same_streams import runs_of_elements
from disteval.default_backend import joining_backend
from disteval.errors import SampleError, UsageError, describe_error
from disteval.evaluation.agreement import Failure, agree
from disteval.evaluation.result import Evaluation
from disteval.evaluation.schedules import Fixed, Leases, Schedule
from disteval.evaluation.task import Predict, Task
from disteval.evaluation.updates import Update, check_rows
from disteval.evaluation.work import Progress, Target, Work
from disteval.identity import incomparable
from disteval.ledger import Part, joined
from disteval.metrics.base import BaseMetric
from disteval.metrics.totals import check_kept, check_own, compute_totals, take_totals
from disteval.outputs import OUTPUTS, SWITCH

_log = logging.getLogger("disteval")


def evaluate(
    predict: Predict,
    samples: Any,
    metrics: Mapping[str, BaseMetric],
    backend: str | BaseDistBackend | None = None,
    batch_size: int = 256,
    *,
    collate: Collate | None = None,
    update: Update | Mapping[str, Update] | None = None,
    fixed_shape: bool = True,
    even_calls: bool | None = None,
    by_length: ByLength | None = None,
    workers: int = 0,
    limit: int | None = None,
    predictions: Target = None,
    progress: bool | Progress = False,
    leases: Leases | None = None,
    ledger: str | os.PathLike[str] | None = None,
) -> Evaluation:
    """Evaluate samples, with a share on each rank; every rank must call it.

    Samples are arrays, a tuple or dict of arrays of one length, or anything with ``__len__`` and
    ``__getitem__``, of which a rank reads only its own. Or they are a stream: anything else that
    can be iterated over, or a function that returns such. Each rank drops its own padding before
    anything is sent, and it is proved that every sample was counted once.

    Args:
        predict: The model. It gets a batch, or the first field of a batch that is a tuple, and
            returns one row for each sample, in an array, or in a tuple or dict of arrays. A
            parameter named ``ids`` gets the number of the sample in each row, int64 of shape (N,),
            by which it can draw random numbers, see `disteval.seeds`.
        samples: All samples, the same on every rank.
        metrics: Metrics by name. They are reset first; then each gets ``add`` for every batch, and
            computes over ``backend``.
        backend: The backend that carries the results, or its name. None stands for the default,
            see `disteval.get_dist_backend`.
        batch_size: The number of samples in each call of ``predict``: consecutive ones, in whole
            batches that ranks take in turn, so that a batch is the same at any world size.
        collate: A function that makes a batch of a list of samples. None stacks arrays and
            numbers, field by field. A parameter named ``ids`` gets the samples' numbers.
        update: A function of ``predict``'s outputs and the batch, which returns the arguments of
            the metrics' ``add``, as a tuple or a dict; or a dict of such functions by the metrics'
            names. By default a metric gets the outputs, and the labels: the second field of a
            tuple, or what a dict has under ``label``, ``labels``, ``target``, ``targets`` or ``y``.
        fixed_shape: Whether each call of ``predict`` gets exactly ``batch_size`` samples: the last
            batch is filled up with repeats of its last sample, which are not counted. If
            ``predict`` has a function ``slice_rows``, which takes ``batch_size`` and returns the
            number of rows that it computes at once, a batch is filled up to a multiple of that.
            Calls that are not counted may have fewer, see `disteval.evaluation.canary`.
        even_calls: Whether every rank calls ``predict`` equally often, as a model that spans ranks
            needs: one that has a batch less repeats one, which is not counted. None does so for
            samples that have a length, and for streams that every rank reads whole. True has every
            rank read all shards, and refuses leases. False never does.
        by_length: A `ByLength`, if batches are made by the lengths of samples; None takes samples
            in the order of the data set.
        workers: The number of workers that read batches ahead; 0 reads each when it is needed.
        limit: The number of samples to evaluate, from the first; None evaluates all.
        predictions: A folder to which the outputs are written, as JSON lines or as a
            `Predictions` says. If an evaluation was interrupted, the next one with this folder
            goes on where it stopped.
        progress: True shows a bar on rank 0; a function is called after every batch.
        leases: A `Leases`, if ranks ask for batches when they have finished others, and may be
            lost; None gives each rank its share before the first batch.
        ledger: A folder that keeps what was evaluated, so that the next evaluation with this folder
            goes on from there, at any world size and batch size, with leases or without. None keeps
            it beside the predictions until these are finished, or in memory where there are none.

    Raises:
        UsageError: On every rank, when an argument is of another kind or out of range, or ranks
            were given different samples or settings; or the folder for predictions can't be used.
        RankError: On every rank, when a sample could not be read, or ``collate``, ``predict``,
            ``update`` or a metric failed on a rank. The rank's own error is its cause there.
        CoverageError: On every rank, when a sample was missed or counted more than once.
    """
    return evaluate_task(
        lambda: Task(
            samples=samples, predict=predict, metrics=metrics, batch_size=batch_size,
            collate=collate, update=update, fixed_shape=fixed_shape, even_calls=even_calls,
            by_length=by_length, workers=workers, limit=limit,
        ),
        backend, predictions, progress, leases, ledger,
    )  # fmt: skip


def evaluate_task(
    make: Callable[[], Task],
    backend: str | BaseDistBackend | None,
    predictions: Target,
    progress: bool | Progress,
    leases: Leases | None,
    ledger: str | os.PathLike[str] | None,
) -> Evaluation:
    """Evaluate the task that ``make`` returns, see `evaluate`; all ranks raise its error."""
    backend = joining_backend(backend)
    if traces.current() is not None and backend.world_size > 1:
        backend = _recorded(backend)
    work: Work | None = None
    try:
        try:
            if not isinstance(leases, Leases | None):
                raise UsageError(
                    f"leases must be a disteval.Leases, such as Leases(), not {leases!r}"
                )
            folder = None if ledger is None else Path(check_path("ledger", ledger))
            is_kept = leases is not None or folder is not None
            is_lent = leases is not None
            work = Work(make(), backend, predictions, progress, is_kept=is_kept, is_lent=is_lent)
            if leases is not None:
                leases = leases.of_work(work, folder)
        except Exception as error:  # the other ranks wait for this one
            agree(backend, {}, error)
            raise
        held = work.held if work.is_kept else None
        work.held = agree(backend, work.settings, None, work.look, held)
        if work.look is not None:
            work.canary.compare(work, 1 if leases is None else leases.same)
        with ExitStack() as stack:
            schedule: Schedule
            if leases is None:
                schedule = Fixed(work, folder, stack)
            else:  # which fixed shares do not need
                from disteval.evaluation.borrowed import borrowing

                schedule = stack.enter_context(borrowing(work, leases, folder))
            return carry_out(work, schedule)
    finally:
        if work is not None:
            work.close()


def carry_out(work: Work, schedule: Schedule) -> Evaluation:
    """Evaluate what a schedule says, once ranks agree, and return what all ranks have found.

    Args:
        work: What is evaluated.
        schedule: Says which samples this rank evaluates, and joins the ranks at the end.

    Raises:
        HarnessError: As `evaluate` raises it.
    """
    begin = time.perf_counter()
    is_known = bool(work.canary.text) or not is_switched_on(SWITCH)
    total = schedule.total() if work.progress else None
    with ExitStack() as stack:
        report = work.progress if callable(work.progress) else None
        if report is None and work.progress and not schedule.rank and total != 0:
            report = stack.enter_context(_bar(total))
        failure = _Loop(work, schedule).run(report, total)
    found = schedule.complete(partial(finish, work), failure)
    stored, compared, leases = found.stored, found.compared, found.leases
    alone = found.world_size == 1 and not stored
    if work.look is not None and not alone:
        is_kept = stored or leases is not None
        compared = compared or (work.look.count if is_kept else work.look.compared)
    is_exact = (
        is_switched_on(DIGESTS)
        and (alone or compared == found.size)
        and found.repeatable is not False
    )
    told = work.canary.difference, None if leases is None else leases.difference
    differences = [each for each in told if each is not None]
    if stored and schedule.rank == 0:
        unknown = [*incomparable(work.evaluated | work.held), *[OUTPUTS] * (not is_known)]
        if unknown:
            _log.warning(
                "%d samples are those of an earlier run; whether this has changed since can't be "
                "found out: %s", stored, ", ".join(unknown),
            )  # fmt: skip
    return replace(
        found,
        batch_size=work.form.batch_size,
        seconds=time.perf_counter() - begin,
        coverage="exact" if is_exact else "by index",
        compared=compared,
        difference=None if found.repeatable is False else max(differences, default=None),
    )


class _Loop:
    """The loop over the batches of one rank.

    Args:
        work: What is evaluated.
        schedule: Says which samples, and takes what was done.
    """

    def __init__(self, work: Work, schedule: Schedule) -> None:
        self._work, self._schedule, self._counted = work, schedule, Counted()
        # What is being done at present, as an error names it, and with which samples.
        self._place, self._ids = "starting", np.zeros(0, np.int64)
        self._is_whole = True  # metrics and predictions have the same samples
        self._is_first = True  # no batch was added yet
        self._predict, self._add, self._write = work.task.predict, work.updates.add, work.write
        if (recorder := traces.current()) is not None:
            self._predict = recorder.timed(self._predict, "compute", "predict")
            self._add = recorder.timed(self._add, "metric", "add")
            self._write = self._write and recorder.timed(self._write, "data", "write")

    def run(self, report: Progress | None, total: int | None) -> Failure | None:
        """Evaluate and commit what the schedule says; return what failed on this rank, if anything.

        Args:
            report: Is told of each batch; None tells nobody.
            total: The number of samples of this rank, as far as it is known.
        """
        schedule = self._schedule
        try:
            check_own(self._work.task.metrics)
            self._place = "reading"
            with drawn() as names:
                for units in schedule.leases():
                    then = "commit"
                    with closing(schedule.source.read(units)) as batches:
                        for batch in traces.loading(batches, lambda batch: len(batch.ids)):
                            self.evaluate(batch)
                            schedule.seen += batch.samples
                            self._place = "progress"
                            if report is not None:
                                report(schedule.seen, total)
                            self._place = "committing"
                            then = schedule.after(batch)
                            if then == "drop":
                                break
                            if then == "commit":
                                self.commit()
                            self._place = "reading"
                    self._place = "committing"
                    if then == "drop":
                        self.drop()
                    else:
                        self.commit()
                    self._place = "reading"
            if names:
                _log.warning(
                    "rank %d drew from the global generator of %s while it evaluated samples, so "
                    "the result depends on ranks and batches if the numbers count; give predict or "
                    "collate a parameter ids, and draw by disteval.seeds(ids)",
                    schedule.rank, " and ".join(names),
                )  # fmt: skip
        except BaseException as error:
            if self._is_whole and self._place != "committing":
                schedule.keep(self.commit)
            if not isinstance(error, Exception):
                raise
            failure = self._failure(error)
            # At once, for the other ranks hear of it after their last batch.
            _log.error("rank %d %s", schedule.rank, failure.what, exc_info=failure.error)
            return failure
        return None

    def evaluate(self, batch: Batch) -> None:
        """Evaluate a batch, and give its samples that count to metrics and predictions."""
        work, ids = self._work, batch.ids
        self._place, self._ids = "predict", ids
        outputs = work.canary.first(work, self._predict, batch)
        work.warn_of_training()
        check_rows(outputs, batch.rows)
        if not len(ids):
            return
        if len(ids) < batch.rows:
            outputs = first_rows(outputs, batch.rows, len(ids))
        with self._schedule.whole():
            self._is_whole = False
            self._place = ""  # the updates know better
            self._add(outputs, batch.real, ids)
            if self._is_first and self._schedule.is_kept:
                self._place = "metrics"
                check_kept(work.task.metrics)
            self._is_first = False
            self._place = "predictions"
            if self._write is not None:
                self._write(ids, outputs, batch.real)
            self._counted.add(ids, batch.contents, int(ids[0]) >> SHARD_BITS)
            self._is_whole = True

    def commit(self) -> None:
        """Commit what was done since the last commit."""
        work, stream = self._work, self._work.stream
        with self._schedule.whole():
            counted, self._counted = self._counted, Counted()
            part = Part(
                self._schedule.rank, *counted.sealed(),
                take_totals(work.task.metrics, counted.first),
                () if work.writer is None else work.writer.take(),
                {} if stream is None else dict(stream.lengths),
                {} if stream is None else counted.contents, work.canary.repeatable,
            )  # fmt: skip
            self._schedule.commit(part)

    def drop(self) -> None:
        """Drop what was done since the last commit."""
        self._counted = Counted()
        for metric in self._work.task.metrics.values():
            metric.reset()
        if self._work.writer is not None:
            self._work.writer.drop()

    def _failure(self, error: Exception) -> Failure:
        """Say what failed, and where."""
        if isinstance(error, SampleError):
            cause = error.__cause__
            return Failure(f"failed: {error}", cause if isinstance(cause, Exception) else error)
        if self._place in ("starting", "reading", "committing"):
            return Failure(f"failed while {self._place}: {describe_error(error)}", error)
        where = "at its padding"
        if len(self._ids):
            where = f"at sample{'s' * (len(self._ids) > 1)} {name_some(self._ids)}"
        place = self._place or self._work.updates.doing
        return Failure(f"failed {where}, in {place}: {describe_error(error)}", error)


def finish(work: Work, parts: Sequence[Part]) -> Evaluation:
    """Prove that every sample was counted once, and compute the result, in one process.

    What all ranks together know is left to `carry_out`.

    Args:
        work: What is evaluated.
        parts: What this run and earlier ones have evaluated.

    Raises:
        CoverageError: A sample was missed or counted more than once, or predictions are missing.
        UsageError: A stream has no elements, or a metric refuses samples.
        RankError: A metric could not compute.
    """
    whole, size = joined(parts), work.source.size
    ids = runs_of_elements(whole.lengths) if size is None else size
    if not prove(whole.certificate, ids):
        shards = [np.zeros(0, np.int64)] * (1 + max(part.rank for part in parts))
        for part in parts:
            shards[part.rank] = np.concatenate([shards[part.rank], unpacked_ids(part.ids)])
        raise fault_of(shards, ids)
    results = compute_totals(work.task.metrics, [part.states for part in parts])
    if work.folder is not None:
        complete(work.folder, work.task.name, whole.files, whole.certificate)
    counted, _, contents = whole.certificate
    return Evaluation(
        results, counted, padded=0, world_size=1, batch_size=0, seconds=0.0,
        digest=as_text(contents), repeatable=whole.repeatable,
    )  # fmt: skip


@contextmanager
def _bar(total: int | None) -> Iterator[Progress]:
    """Yield a function that shows how far rank 0 is."""
    from tqdm import tqdm  # which most ranks need not import

    with tqdm(total=total, unit=" samples", desc="rank 0") as bar:
        yield lambda done, _: bar.update(done - bar.n)


def _recorded(backend: BaseDistBackend) -> BaseDistBackend:
    """Return a backend whose collectives are recorded; in a world they are already."""
    from disteval.world.collective_log import LoggedBackend  # which others need not import

    return backend if isinstance(backend, LoggedBackend) else LoggedBackend(backend, None)
