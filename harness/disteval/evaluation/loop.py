"""The loop of an evaluation, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from disteval.arguments import check_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Counted, certify, check_once
from disteval.data.base import ArrayDataset, check_samples
from disteval.default_backend import joining_backend
from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of
from disteval.metrics.base import BaseMetric
from disteval.metrics.group import MetricGroup
from disteval.sharding import Shard, ShardPlan

Predict = Callable[[npt.NDArray[np.uint8]], Any]
"""A function of pictures, uint8 of shape (B, C, H, W), to scores of shape (B, classes)."""

Progress = Callable[[int, int], None]
"""A function that is called with the samples this rank has done, and those of its whole shard."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, which is the same on every rank except for the times.

    Attributes:
        metrics: Each metric's result, by the metric's name.
        size: The number of samples in the data set.
        evaluated: The number of samples that were counted, over all ranks.
        padded: The number of samples that were computed as padding and not counted.
        world_size: The number of ranks.
        batch_size: The number of pictures in each call of ``predict``.
        coverage: ``exact``: it was proved that every sample was counted once.
        seconds: The time from the first batch, when all ranks were ready, to the last result.
    """

    metrics: dict[str, Any]
    size: int
    evaluated: int
    padded: int
    world_size: int
    batch_size: int
    seconds: float
    coverage: Literal["exact"] = "exact"

    @property
    def images_per_second(self) -> float:
        """The number of samples divided by the seconds."""
        return self.evaluated / self.seconds


def evaluate(
    predict: Predict,
    dataset: ArrayDataset,
    metrics: Mapping[str, BaseMetric],
    backend: str | BaseDistBackend | None = None,
    batch_size: int = 256,
    *,
    mode: Literal["strided", "contiguous"] = "strided",
    pad: bool = True,
    progress: bool | Progress = False,
    shard: Callable[[int, int, int], Shard] | None = None,
) -> Evaluation:
    """Evaluate a data set, with a shard on each rank; every rank must call it.

    Every call of ``predict`` gets exactly ``batch_size`` pictures, so a sample's scores do not
    depend on the world size or on its batch: a shard's last batch is filled up with pictures that
    are not counted. Each rank drops its own padding before anything is sent.

    Args:
        predict: The model. The array that it is given is reused for the next batch.
        dataset: The whole data set, the same on every rank.
        metrics: Metrics by name. They are reset first; then each gets ``add(scores, labels)`` for
            every batch, and computes over ``backend``.
        backend: The backend that carries the results, or its name. None stands for the default,
            see `disteval.get_dist_backend`.
        batch_size: The number of pictures in each call of ``predict``.
        mode: How samples are distributed over ranks, see `ShardPlan`.
        pad: Whether every rank runs equally many batches, see `ShardPlan`.
        progress: True shows a bar on rank 0; a function is called after every batch.
        shard: A function that replaces `ShardPlan`: it takes the data set's size, the world size
            and the rank, and returns that rank's `Shard`.

    Raises:
        UsageError: An argument is of another kind or out of range; ``predict`` did not return one
            row of scores for each picture; or, on every rank, ranks were given different data set
            sizes or settings.
        RankError: On every rank, when a metric could not be computed.
        CoverageError: On every rank, when a sample was missed or counted more than once.
        Exception: The error that ``predict`` or a metric's ``add`` raised, on its rank alone.
            Let it end the process, because the other ranks wait for it. A `World` ends them itself.
    """
    batch_size = check_count("batch_size", batch_size)
    _check_functions(predict, shard)
    size = _checked_size(dataset)
    backend = joining_backend(backend)
    group = MetricGroup(metrics, backend)
    share: Shard = ShardPlan(size, backend.world_size, backend.rank, mode, pad)
    if shard is not None:
        share = shard(size, backend.world_size, backend.rank)
    plan = _samples(share, size)
    group.reset()
    counted: list[npt.NDArray[np.int64]] = []
    _check_agreement(backend, (size, batch_size, mode, pad, list(metrics)))

    begin = time.perf_counter()
    with _reporting(progress, backend.rank, len(plan.indices)) as report:
        _run_shard(predict, dataset, group, counted, plan, batch_size, report)
    ids = np.concatenate([np.zeros(0, np.int64), *counted])
    note = (*certify(ids), len(plan.indices))
    results, notes = group.compute_with_note(note=note)
    seconds = time.perf_counter() - begin
    certificates = [Certificate(*certificate) for *certificate, _ in notes]
    check_once(certificates, Counted(ids), size, backend)
    return Evaluation(
        metrics=results,
        size=size,
        evaluated=size,
        padded=sum(seen for *_, seen in notes) - size,
        world_size=backend.world_size,
        batch_size=batch_size,
        seconds=seconds,
    )


def _run_shard(
    predict: Predict,
    dataset: ArrayDataset,
    metrics: MetricGroup,
    ids: list[npt.NDArray[np.int64]],
    plan: Shard,
    batch_size: int,
    report: Progress,
) -> None:
    total = len(plan.indices)
    batch = np.zeros((batch_size, *dataset.images.shape[1:]), dtype=np.uint8)
    for start in range(0, total, batch_size):
        indices = plan.indices[start : start + batch_size]
        np.take(dataset.images, indices, axis=0, out=batch[: len(indices)])
        scores = predict(batch)
        _check_scores(scores, batch_size)
        # Padding is last, so the samples that count are the first ones of the batch.
        counted = len(indices) - int(plan.is_padding[start : start + batch_size].sum())
        if counted:
            metrics.add(scores[:counted], dataset.labels[indices[:counted]])
            ids.append(indices[:counted])
        report(start + len(indices), total)


def _check_functions(predict: object, shard: object) -> None:
    for name, value in (("predict", predict), ("shard", shard)):
        if not callable(value) and not (name == "shard" and value is None):
            raise UsageError(f"{name} must be a function, not {value!r}")


def _checked_size(dataset: Any) -> int:
    """Return the number of samples of a data set of anybody's, which has one label for each."""
    if not (hasattr(dataset, "images") and hasattr(dataset, "labels")):
        raise UsageError(
            f"evaluate takes a data set that holds all pictures and labels as arrays, not one "
            f"of type {type(dataset).__name__}; make a disteval.data.ArrayDataset(name, images, "
            f"labels, classes), or add batches of your own to a disteval.metrics.MetricGroup"
        )
    images, labels = dataset.images, dataset.labels
    for name, array in (("images", images), ("labels", labels)):
        if not getattr(array, "shape", ()):
            raise UsageError(
                f"{name} has the type {type(array).__name__}; it must be an array, such as "
                f"numpy.asarray makes of lists"
            )
    length = len(dataset) if hasattr(dataset, "__len__") else len(images)
    if not len(images) == len(labels) == length:
        raise UsageError(
            f"the data set has {len(images)} images, {len(labels)} labels and the length {length}; "
            f"give one label for each image, and as many as len() says"
        )
    check_samples(images, labels, getattr(dataset, "classes", None))
    return length


def _check_scores(scores: Any, batch_size: int) -> None:
    if isinstance(scores, str | tuple) or not hasattr(scores, "__len__"):
        found = "None" if scores is None else f"a value of type {type(scores).__name__}"
    elif isinstance(scores, Mapping):
        found = f"a {type(scores).__name__} with the keys {list(scores)}"
    else:
        rows = shape_of(scores)[:1]
        if rows == (batch_size,):
            return
        found = f"{rows[0]} rows of scores" if rows else "a single number"
    raise UsageError(
        f"predict got {batch_size} pictures and returned {found}; it must return scores of shape "
        f"({batch_size}, classes), one row for each picture"
    )


class _Samples(NamedTuple):
    """A `Shard` whose arrays have been checked."""

    indices: npt.NDArray[np.int64]
    is_padding: npt.NDArray[np.bool_]


def _samples(shard: Shard, size: int) -> _Samples:
    if not (hasattr(shard, "indices") and hasattr(shard, "is_padding")):
        raise UsageError(
            f"the function shard returned a {type(shard).__name__}; it must return an object with "
            f"indices and is_padding, such as a disteval.ShardPlan"
        )
    indices, is_padding = np.asarray(shard.indices), np.asarray(shard.is_padding)
    if indices.ndim != 1 or indices.shape != is_padding.shape:
        raise UsageError(
            f"a shard has indices of shape {indices.shape} and is_padding of shape "
            f"{is_padding.shape}; both must have shape (N,)"
        )
    if len(indices) and (indices.dtype.kind not in "iu" or is_padding.dtype != np.bool_):
        raise UsageError(
            f"a shard has indices of {indices.dtype} and is_padding of {is_padding.dtype}; they "
            f"must be integers and truth values"
        )
    wrong = indices[(indices < 0) | (indices >= size)]
    if len(wrong):
        raise UsageError(
            f"a shard has the index {wrong[0]}, and the data set has {size} samples, whose "
            f"indices are 0 to {size - 1}"
        )
    if (is_padding[:-1] > is_padding[1:]).any():
        raise UsageError("a shard's padding must come after all samples that count")
    return _Samples(indices.astype(np.int64), is_padding.astype(np.bool_))


def _check_agreement(backend: BaseDistBackend, settings: tuple[Any, ...]) -> None:
    """Compare all ranks' settings, on every rank; this also lets ranks start together."""
    gathered = backend.all_gather_object(settings)
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            raise UsageError(
                f"ranks do not evaluate the same thing: (samples, batch size, mode, pad, metrics) "
                f"is {gathered[0]} on rank 0 and {other} on rank {rank}"
            )


@contextmanager
def _reporting(progress: bool | Progress, rank: int, total: int) -> Iterator[Progress]:
    if callable(progress):
        yield progress
        return
    with tqdm(total=total, unit="img", desc="rank 0", disable=not progress or rank != 0) as bar:

        def advance(done: int, _total: int) -> None:
            bar.update(done - bar.n)

        yield advance
