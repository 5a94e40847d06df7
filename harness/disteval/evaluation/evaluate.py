"""The evaluation of a data set by ranks, each of which evaluates some of its batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from disteval import traces
from disteval.arguments import check_path
from disteval.contract import BaseDistBackend
from disteval.data.collate import Collate
from disteval.data.length_of import ByLength
from disteval.default_backend import joining_backend
from disteval.errors import UsageError
from disteval.evaluation.agreement import agree
from disteval.evaluation.result import Evaluation
from disteval.evaluation.schedules import Fixed, Leases
from disteval.evaluation.task import Predict, Task
from disteval.evaluation.updates import Update
from disteval.evaluation.work import Progress, Target, Work
from disteval.identity import incomparable
from disteval.metrics.base import BaseMetric

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
            rank reads whole. True does so for shards, too, by a small message for each batch, and
            refuses leases. False never does.
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
            by_length=by_length, workers=workers, limit=limit, name=name,
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
    """Evaluate a task, see `evaluate`; every rank must call it.

    Args:
        make: Returns the task; ranks wait for each other's error.
        backend: See `evaluate`, as for the rest.
        predictions: See there.
        progress: See there.
        leases: See there.
        ledger: See there.
    """
    backend = joining_backend(backend)
    if traces.current() is not None and backend.world_size > 1:
        backend = _recorded(backend)
    error: Exception | None = None
    work: Work | None = None
    settings: dict[str, Any] = {}
    folder: Path | None = None
    try:
        if not isinstance(leases, Leases | None):
            raise UsageError(f"leases must be a disteval.Leases, such as Leases(), not {leases!r}")
        folder = None if ledger is None else Path(check_path("ledger", ledger))
        is_kept = leases is not None or folder is not None
        work = Work(make(), backend, predictions, progress, is_kept=is_kept)
        if leases is not None:
            leases = leases.of_spread(work)
        found = {} if leases is None else leases.settings(work, folder)
        settings = work.settings | found
    except Exception as caught:  # the other ranks wait for this one
        error = caught
    try:
        agree(backend, settings, error, None if work is None else work.look)
        assert work is not None
        if leases is None or leases.group_size == 1:  # otherwise ranks may have parts of a model
            work.canary.compare(work)
        if leases is None:
            result = Fixed(work, folder).evaluate()
        else:
            # Fixed shares do not need it.
            from disteval.evaluation.borrowed import evaluate_in_leases

            result = evaluate_in_leases(work, leases, folder)
    finally:
        if work is not None:
            work.close()
    unknown = incomparable(work.evaluated | work.held)
    if result.stored and unknown and backend.rank == 0:
        _log.warning(
            "%d samples are those of an earlier run, and these can't be compared with what they "
            "were then: %s", result.stored, ", ".join(unknown),
        )  # fmt: skip
    return result


def _recorded(backend: BaseDistBackend) -> BaseDistBackend:
    """Return a backend whose collectives are recorded; in a world they are already."""
    from disteval.world.collective_log import LoggedBackend  # which others need not import

    return backend if isinstance(backend, LoggedBackend) else LoggedBackend(backend, None)
