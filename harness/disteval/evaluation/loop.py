"""The loop of an evaluation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from tqdm import tqdm

from disteval.arguments import check_flag
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Counted, name_some
from disteval.data.batching import Indices, Mode
from disteval.data.collate import Collate, first_rows
from disteval.data.collate import collate as default_collate
from disteval.data.lengths import Length
from disteval.data.predictions import Predictions, Sink, Target, check_target, open_sink
from disteval.data.same_samples import look_at
from disteval.data.samples import open_samples
from disteval.data.shards import ShardedStream
from disteval.default_backend import joining_backend
from disteval.errors import SampleError, UsageError, describe_error
from disteval.evaluation.agreement import (
    Failure,
    agree,
    log_failure,
    outlive,
    raise_failure,
)
from disteval.evaluation.dealing import Dealing, MakeShard
from disteval.evaluation.feeds import Feed, SizedFeed, StreamFeed
from disteval.evaluation.result import Evaluation
from disteval.evaluation.updates import Update, Updates, check_order, check_rows
from disteval.metrics.base import BaseMetric
from disteval.metrics.group import MetricGroup

Predict = Callable[[Any], Any]
"""A function of a batch, or of its first field if it is a tuple, to a row for each sample."""

Progress = Callable[[int, int | None], None]
"""A function that is called with the samples this rank has done, and all of its samples."""


def evaluate(
    predict: Predict,
    samples: Any,
    metrics: Mapping[str, BaseMetric],
    backend: str | BaseDistBackend | None = None,
    batch_size: int = 256,
    *,
    collate: Collate | None = None,
    update: Update | Mapping[str, Update] | None = None,
    mode: Mode | None = None,
    fixed_shape: bool = True,
    pad: bool = True,
    shard: MakeShard | None = None,
    max_tokens: int | None = None,
    length: Length = None,
    sort_by_length: bool = False,
    workers: int = 0,
    limit: int | None = None,
    predictions: Target = None,
    progress: bool | Progress = False,
) -> Evaluation:
    """Evaluate samples, with a share on each rank; every rank must call it.

    Samples are arrays, a tuple or dict of arrays of one length, or anything with ``__len__`` and
    ``__getitem__``, of which a rank reads only its own. Or they are a stream: anything else that
    can be iterated over, or a function that returns such. Each rank drops its own padding before
    anything is sent, and it is proved that every sample was counted once.

    Args:
        predict: The model. It gets a batch, or the first field of a batch that is a tuple, and
            returns one row for each sample, in an array, or in a tuple or dict of arrays. The
            array of an `ArrayDataset` that it is given is reused for the next batch.
        samples: All samples, the same on every rank.
        metrics: Metrics by name. They are reset first; then each gets ``add`` for every batch, and
            computes over ``backend``.
        backend: The backend that carries the results, or its name. None stands for the default,
            see `disteval.get_dist_backend`.
        batch_size: The number of samples in each call of ``predict``.
        collate: A function that makes a batch of a list of samples. None stacks arrays and
            numbers, field by field.
        update: A function of ``predict``'s outputs and the batch, which returns the arguments of
            the metrics' ``add``, as a tuple or a dict; or a dict of such functions by the metrics'
            names. By default a metric gets the outputs, and the labels: the second field of a
            tuple, or what a dict has under ``label``, ``labels``, ``target``, ``targets`` or ``y``.
        mode: How samples are distributed over ranks: ``"strided"``, the default, or
            ``"contiguous"`` as in `ShardPlan`; or ``"batches"``, where ranks get whole batches of
            consecutive samples in turn, so that a batch holds the same samples at any world size.
        fixed_shape: Whether each call of ``predict`` gets exactly ``batch_size`` samples: the last
            batch is filled up with repeats of its last sample, which are not counted.
        pad: Whether every rank runs equally many batches.
        shard: A function that replaces ``mode``: it takes the number of samples, the world size
            and the rank, and returns that rank's `Shard`.
        max_tokens: The most that the number of samples in a batch, times the longest of their
            lengths, may be; None sets no limit but ``batch_size``.
        length: The lengths of the samples, an array of integers; or a function of a sample; or the
            name of a field. None takes the field ``input_ids`` or ``tokens``, or the sample's own.
        sort_by_length: Whether samples of like lengths are put into one batch, the longest first.
        workers: The number of workers that read batches ahead; 0 reads each when it is needed.
        limit: The number of samples to evaluate, from the first; None evaluates all.
        predictions: A folder to which the outputs are written, as JSON lines or as a
            `Predictions` says. If an evaluation was interrupted, the next one with this folder
            goes on where it stopped.
        progress: True shows a bar on rank 0; a function is called after every batch.

    Raises:
        UsageError: On every rank, when an argument is of another kind or out of range, or ranks
            were given different samples or settings; or the folder for predictions can't be used.
        RankError: On every rank, when a sample could not be read, or ``collate``, ``predict``,
            ``update`` or a metric failed on a rank. The rank's own error is its cause there.
        CoverageError: On every rank, when a sample was missed or counted more than once.
    """
    backend = joining_backend(backend)
    world, rank = backend.world_size, backend.rank
    error: Exception | None = None
    feed: Feed
    settings: dict[str, Any] = {}
    try:
        _check_functions(predict=predict, collate=collate)
        if not callable(progress):
            check_flag("progress", progress)
        dealing = Dealing(
            batch_size, mode, fixed_shape, pad, shard, max_tokens, length, sort_by_length,
            workers, limit,
        )  # fmt: skip
        opened = open_samples(samples, collate)
        if opened is None:
            stream = dealing.stream(samples, backend)
            feed = StreamFeed(stream, dealing, collate or default_collate)
        elif not dealing.by_length:
            feed = SizedFeed(opened, dealing, backend)
        group = MetricGroup(metrics, backend)

        def check_metrics(by_shards: bool) -> None:
            check_order(metrics, dealing.natural_order(world, by_shards))

        check_metrics(isinstance(samples, ShardedStream))
        updates = Updates(metrics, update)
        target = check_target(predictions)
        group.reset_to_sums()
        is_compared = world > 1 or isinstance(target, Predictions)
        content = look_at(opened) if is_compared and opened is not None else ""
        settings = dealing.settings() | {
            "the number of samples": stream.settings if opened is None else len(opened),
            "the content of samples, of which every rank needs all in the same order,": content,
            "metrics": sorted(metrics, key=str),
            "predictions": target.settings(None, None),
            **group.settings(),
        }
    except Exception as caught:  # the other ranks wait for this one
        error = caught
    agree(backend, settings, error)

    if opened is not None and dealing.by_length:  # ranks read lengths together, once they agree
        feed = SizedFeed(opened, dealing, backend)
    known = None if opened is None else dealing.limited(len(opened))
    with closing(
        open_sink(
            target, backend, known, limit if known is None else None, content, exact=bool(metrics)
        )
    ) as sink:
        if len(sink.stored_ids):
            feed.resume(sink.stored_ids, needed=bool(metrics))
            check_order(metrics, ())
        begin = time.perf_counter()
        with _reporting(progress, rank, feed.total) as report, group.trusting_ids():
            counted, failure = _run(predict, feed, group, updates, sink, report, rank)
        results, size, padded = _together(
            backend, group, feed, sink, counted, failure, check_metrics
        )
    return Evaluation(
        metrics=results,
        size=size,
        evaluated=size,
        padded=padded,
        world_size=world,
        batch_size=batch_size,
        seconds=time.perf_counter() - begin,
        stored=len(sink.stored_ids),
    )


def _run(
    predict: Predict,
    feed: Feed,
    group: MetricGroup,
    updates: Updates,
    sink: Sink,
    report: Progress,
    rank: int,
) -> tuple[Counted, Failure | None]:
    """Evaluate this rank's batches; return the ids that were counted, and what failed."""
    counted = Counted()
    place, ids = "starting", counted.all()
    try:
        group.check_own()
        place = "reading"
        with closing(iter(feed)) as batches:
            for batch in batches:
                place, ids = "predictions", batch.ids
                outputs = sink.stored(ids) if batch.rows else None
                if outputs is None and batch.rows:
                    place = "predict"
                    inputs = batch.filled[0] if isinstance(batch.filled, tuple) else batch.filled
                    outputs = predict(inputs)
                    check_rows(outputs, batch.rows)
                    if 0 < len(ids) < batch.rows:
                        outputs = first_rows(outputs, batch.rows, len(ids))
                if len(ids) and batch.rows:
                    place = ""
                    updates.add(outputs, batch.real, ids)
                    place = "predictions"
                    sink.write(ids, outputs, batch.real)
                counted.add(ids)
                place = "progress"
                report(feed.seen, feed.total)
                place = "reading"
    except Exception as error:  # the other ranks hear of it after their last batch
        failure = _failure(place or updates.doing, ids, error)
        log_failure(rank, failure)
        return counted, failure
    return counted, None


def _failure(place: str, ids: Indices, error: Exception) -> Failure:
    if isinstance(error, SampleError):
        cause = error.__cause__
        return Failure(f"failed: {error}", cause if isinstance(cause, Exception) else error)
    if place in ("starting", "reading"):
        return Failure(f"failed while {place}: {describe_error(error)}", error)
    where = "at its padding"
    if len(ids):
        where = f"at sample{'s' * (len(ids) > 1)} {name_some(ids)}"
    return Failure(f"failed {where}, in {place}: {describe_error(error)}", error)


def _together(
    backend: BaseDistBackend,
    group: MetricGroup,
    feed: Feed,
    sink: Sink,
    counted: Counted,
    failure: Failure | None,
    check_metrics: Callable[[bool], None],
) -> tuple[dict[str, Any], int, int]:
    """Return the metrics' results, the number of samples, and the padding of all ranks."""
    proved: dict[str, Any] = {}

    def check(notes: list[Any]) -> None:
        """Raise every failure, and prove the coverage, before anything else is computed."""
        raise_failure([what for *_, what in notes], failure)
        certificates = [Certificate(*certificate) for certificate, *_ in notes]
        size = feed.prove([told for _, told, *_ in notes], certificates, counted, backend)
        check_metrics(feed.by_shards)  # a function may have returned a stream of shards
        padded = sum(seen for _, _, seen, _ in notes) - size
        proved.update(size=size, padded=padded, certificates=certificates)

    note = (tuple(counted.certificate()), feed.note(), feed.seen, failure and failure.what)
    with outlive(backend.rank, failure):
        results, _ = group.compute_with_note(note=note, check=check)
    sink.finish(proved["size"], proved["certificates"])
    return results, proved["size"], proved["padded"]


def _check_functions(**given: object) -> None:
    for name, value in given.items():
        if not callable(value) and not (name != "predict" and value is None):
            raise UsageError(f"{name} must be a function, not {value!r}")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model := given["predict"], torch.nn.Module):
        return
    if isinstance(model, torch.fx.GraphModule):
        return  # an exported one computes as it was traced, and has no eval()
    # One that wraps others, such as DistributedDataParallel, has a mode that nothing depends on.
    if any(part.training for part in model.modules() if not list(part.children())):
        raise UsageError(
            f"predict is a {type(model).__name__} in training mode, in which dropout draws random "
            f"numbers and a batch normalisation mixes the samples of a batch; call its eval() "
            f"first, or give a function that calls it, if it is to be evaluated in training mode"
        )


@contextmanager
def _reporting(progress: bool | Progress, rank: int, total: int | None) -> Iterator[Progress]:
    if callable(progress):
        yield progress
        return
    shown = progress and rank == 0
    with tqdm(total=total, unit=" samples", desc="rank 0", disable=not shown) as bar:

        def advance(done: int, _total: int | None) -> None:
            bar.update(done - bar.n)

        yield advance
