"""The evaluation of samples by ranks that each have a share, and are joined by a backend."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from disteval import traces
from disteval.arguments import check_path
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Counted, add_certificates
from disteval.data.collate import Collate
from disteval.data.collate import collate as default_collate
from disteval.data.contents import CONTENTS, Look, as_text
from disteval.data.length_of import ByLength
from disteval.data.predictions import Predictions, Sink, Target, open_sink
from disteval.data.samples import Sized
from disteval.default_backend import joining_backend
from disteval.errors import UsageError
from disteval.evaluation.agreement import Failure, agree, outlive, raise_failure
from disteval.evaluation.canary import all_repeatable
from disteval.evaluation.dealing import Dealing
from disteval.evaluation.feeds import Feed, SizedFeed, StreamFeed
from disteval.evaluation.leasing import Leases
from disteval.evaluation.result import Evaluation, coverage_of
from disteval.evaluation.updates import Update
from disteval.evaluation.work import Predict, Progress, Work, reporting
from disteval.identity import held_by_all, incomparable
from disteval.metrics.base import BaseMetric
from disteval.outputs import OUTPUTS

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
    name: str = "",
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
            by which it can draw random numbers, see `disteval.seeds`. The array of an
            `ArrayDataset` that it is given is reused for the next batch.
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
            needs: one that has a batch less repeats one, which is not counted. None does so
            wherever it costs no message: for samples that have a length, and for streams that every
            rank reads whole, but by their lengths. True refuses the others, and False never does.
        by_length: A `ByLength`, if batches are made by the lengths of samples; None takes samples
            in the order of the data set.
        workers: The number of workers that read batches ahead; 0 reads each when it is needed.
        limit: The number of samples to evaluate, from the first; None evaluates all.
        predictions: A folder to which the outputs are written, as JSON lines or as a
            `Predictions` says. If an evaluation was interrupted, the next one with this folder
            goes on where it stopped.
        name: The name of what is computed, such as that of a task with the versions of its
            weights and data. An interrupted evaluation goes on under the same name alone.
        progress: True shows a bar on rank 0; a function is called after every batch.
        leases: A `Leases`, if ranks ask for batches when they have finished others, and may be
            lost; None gives each rank its share before the first batch.
        ledger: With leases, a folder that keeps what was evaluated, so that the next evaluation
            with this folder goes on from there; None keeps it in the memory of rank 0.

    Raises:
        UsageError: On every rank, when an argument is of another kind or out of range, or ranks
            were given different samples or settings; or the folder for predictions can't be used.
        RankError: On every rank, when a sample could not be read, or ``collate``, ``predict``,
            ``update`` or a metric failed on a rank. The rank's own error is its cause there.
        CoverageError: On every rank, when a sample was missed or counted more than once.
    """
    backend = joining_backend(backend)
    if traces.current() is not None and backend.world_size > 1:
        backend = _recorded(backend)
    error: Exception | None = None
    look: Look | None = None
    settings: dict[str, Any] = {}
    try:
        if not isinstance(leases, Leases | None):
            raise UsageError(f"leases must be a disteval.Leases, such as Leases(), not {leases!r}")
        if ledger is not None and leases is None:
            raise UsageError("ledger needs leases; add leases=Leases(), or leave it out")
        dealing = Dealing(
            batch_size, fixed_shape, even_calls, by_length, workers, limit, predict
        )  # fmt: skip
        folder = None if ledger is None else Path(check_path("ledger", ledger))
        work = Work(
            predict, samples, metrics, backend, dealing, collate, update, predictions, progress,
            leases is not None or backend.world_size > 1, name,
        )  # fmt: skip
        static = None if leases is not None else _Static(work)
        settings = work.settings | ({} if leases is None else leases.settings(work, folder))
        look = work.look
    except Exception as caught:  # the other ranks wait for this one
        error = caught
    agree(backend, settings, error, look)
    if leases is None or leases.group_size == 1:  # otherwise ranks may have parts of a model
        work.canary.compare(work, kept=leases is not None or isinstance(work.target, Predictions))
    if leases is None:
        assert static is not None
        result = static.evaluate()
    else:
        from disteval.evaluation.leased import evaluate_in_leases  # not needed by static ones

        result = evaluate_in_leases(work, leases, folder)
    unknown = incomparable(work.evaluated | work.held)
    if result.stored and unknown and backend.rank == 0:
        _log.warning(
            "%d samples are those of an earlier run, and these can't be compared with what they "
            "were then: %s", result.stored, ", ".join(unknown),
        )  # fmt: skip
    return result


def _recorded(backend: BaseDistBackend) -> BaseDistBackend:
    """Return a backend whose collectives are recorded; in a world they are already."""
    from disteval.worlds.collective_log import LoggedBackend  # which others need not import

    return backend if isinstance(backend, LoggedBackend) else LoggedBackend(backend, None)


class _Static:
    """An evaluation in which each rank has its share before the first batch."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._world, self._rank = work.backend.world_size, work.backend.rank
        self._feed: Feed | None = None
        dealing = work.dealing
        if work.opened is None:
            stream = dealing.stream(work.samples, work.backend)
            work.settings["the number of samples"] = stream.settings
            self._feed = StreamFeed(stream, dealing, work.collating or default_collate)
        elif not dealing.by_length:
            self._feed = self._sized(work.opened)

    def evaluate(self) -> Evaluation:
        """Evaluate this rank's share; every rank must call it, once ranks agree."""
        work, backend, size = self._work, self._work.backend, self._work.size
        feed = self._feed
        if feed is None:  # ranks read lengths together
            assert work.opened is not None
            feed = self._sized(work.opened)
        if work.look is not None and isinstance(work.target, Predictions):
            work.look.settle()  # random ones are not compared with those of an earlier run
        settings = work.evaluated | {CONTENTS: work.content, OUTPUTS: work.canary.text}
        if isinstance(work.target, Predictions):
            settings |= held_by_all(backend, work.held)
        if size is None:
            settings["limit"] = str(work.dealing.limit)
        with closing(open_sink(work.target, backend, settings, exact=bool(work.metrics))) as sink:
            if len(sink.stored_ids):
                feed.resume(sink.stored_ids, needed=bool(work.metrics))
            begin = time.perf_counter()
            with reporting(work.progress, self._rank, feed.total) as report:
                counted, failure = work.run(feed, sink, report, self._rank)
            results, size, padded, contents, repeatable = _together(
                work, feed, sink, counted, failure
            )
        stored = len(sink.stored_ids)
        compared = feed.compared or (0 if work.look is None else work.look.compared)
        if stored and work.look is not None:  # with the samples whose outputs are stored
            compared = compared or work.look.count
        alone = self._world == 1 and not stored
        return Evaluation(
            metrics=results,
            size=size,
            evaluated=size,
            padded=padded,
            world_size=self._world,
            batch_size=work.dealing.batch_size,
            seconds=time.perf_counter() - begin,
            stored=stored,
            coverage=coverage_of(size, compared, alone=alone),
            compared=compared,
            digest=as_text(contents),
            difference=None if repeatable is False else work.canary.difference,
            repeatable=repeatable,
        )

    def _sized(self, samples: Sized) -> SizedFeed:
        work = self._work
        assert work.loader is not None
        return SizedFeed(samples, work.length, work.loader, work.dealing, work.backend)


def _together(
    work: Work,
    feed: Feed,
    sink: Sink,
    counted: Counted,
    failure: Failure | None,
) -> tuple[dict[str, Any], int, int, int | None, bool | None]:
    """Return the results, the numbers of samples and of padding, the contents, and repeatable."""
    backend, canary = work.backend, work.canary
    proved: dict[str, Any] = {}

    def check(notes: Sequence[Any]) -> None:
        """Raise every failure, and prove the coverage, before anything else is computed."""
        raise_failure([what for *_, what in notes], failure)
        certificates = [Certificate(*certificate) for certificate, *_ in notes]
        size = feed.prove([told for _, told, *_ in notes], certificates, counted, backend)
        padded = sum(seen for _, _, seen, *_ in notes) - size
        repeatable = all_repeatable(found for *_, found, _ in notes)
        proved.update(size=size, padded=padded, certificates=certificates, repeatable=repeatable)

    certificate, what = tuple(counted.certificate()), failure and failure.what
    note = (certificate, feed.note(), feed.seen, canary.repeatable, what)
    with outlive(backend.rank, failure), traces.span("metric", "compute"):
        results, _ = work.group.compute_with_note(note=note, check=check)
    sink.finish(proved["size"], proved["certificates"])
    contents = add_certificates(proved["certificates"]).contents
    return results, proved["size"], proved["padded"], contents, proved["repeatable"]
