"""The loop that one rank runs: shard, batch, predict, count, agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from disteval.arguments import check_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Coverage
from disteval.data.base import ArrayDataset
from disteval.errors import UsageError
from disteval.metrics.base import BaseMetric
from disteval.metrics.group import MetricGroup
from disteval.sharding import Shard, ShardPlan

Predict = Callable[[npt.NDArray[np.uint8]], Any]
"""Takes pictures, uint8 of shape (B, C, H, W); returns scores of shape (B, classes)."""

Progress = Callable[[int, int], None]
"""Called with the samples this rank has done, and the samples of its whole shard."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found; the same on every rank, but for the times.

    Attributes:
        metrics: Each metric's result, under the metric's name.
        size: Samples in the data set.
        evaluated: Samples that were counted, over all ranks.
        padded: Samples that were computed only so that every rank has as many, and dropped.
        world_size: The number of ranks.
        batch_size: Pictures in each call of ``predict``.
        coverage: ``exact``: every sample was counted once, which all ranks' certificates prove.
        seconds: From the first batch, when all ranks were ready, to the last metric's result.
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
        """Samples of the data set over the seconds that it took."""
        return self.evaluated / self.seconds


def evaluate(
    predict: Predict,
    dataset: ArrayDataset,
    metrics: Mapping[str, BaseMetric],
    backend: BaseDistBackend,
    batch_size: int = 256,
    *,
    mode: Literal["strided", "contiguous"] = "strided",
    pad: bool = True,
    progress: bool | Progress = False,
    shard: Callable[[int, int, int], Shard] | None = None,
) -> Evaluation:
    """Evaluate a data set once, every rank its shard; every rank must call it.

    Every call of ``predict`` gets exactly ``batch_size`` pictures (what follows the last sample of
    a shard is filled up and not counted), so a sample's scores do not depend on the world size or
    on which batch it falls in. Each rank drops its own padding before anything is sent.

    Args:
        predict: The model. The array it is given is used again for the next batch.
        dataset: The whole data set, the same on every rank.
        metrics: Metrics by name. Each gets ``add(scores, labels)``, and moves its entries over
            ``backend``. They are reset first.
        backend: Moves the results.
        batch_size: Pictures in each call of ``predict``.
        mode: How samples are dealt, see `ShardPlan`.
        pad: Whether every rank runs equally many batches, see `ShardPlan`.
        progress: True shows a bar on rank 0; a function is called after every batch.
        shard: Deals the samples instead of `ShardPlan`: takes the data set's size, the world size
            and the rank, and returns that rank's `Shard`.

    Raises:
        UsageError: ``batch_size`` is below 1, ``predict`` returned another number of rows, or the
            ranks do not evaluate the same thing (on every rank).
        RankError: On every rank, when a metric could not be computed.
        CoverageError: On every rank, when a sample was missed or counted more than once.
    """
    batch_size = check_count("batch_size", batch_size)
    plan: Shard = ShardPlan(len(dataset), backend.world_size, backend.rank, mode, pad)
    if shard is not None:
        plan = shard(len(dataset), backend.world_size, backend.rank)
    _check_padding_is_last(plan)
    group = MetricGroup(metrics, backend)
    group.reset()
    coverage = Coverage(len(dataset), backend)
    _check_agreement(backend, (len(dataset), batch_size, mode, pad, list(metrics)))

    begin = time.perf_counter()
    with _reporting(progress, backend.rank, len(plan.indices)) as report:
        _run_shard(predict, dataset, group, coverage, plan, batch_size, report)
    note = (*coverage.certificate(), len(plan.indices))
    results, notes = group.compute_with_note(note=note)
    seconds = time.perf_counter() - begin
    coverage.check([Certificate(*certificate) for *certificate, _ in notes])
    return Evaluation(
        metrics=results,
        size=len(dataset),
        evaluated=len(dataset),
        padded=sum(seen for *_, seen in notes) - len(dataset),
        world_size=backend.world_size,
        batch_size=batch_size,
        seconds=seconds,
    )


def _run_shard(
    predict: Predict,
    dataset: ArrayDataset,
    metrics: MetricGroup,
    coverage: Coverage,
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
        if len(scores) != batch_size:
            raise UsageError(
                f"predict got {batch_size} pictures and returned {len(scores)} rows of scores; "
                f"it must return one for each picture"
            )
        # Padding is last, so what counts is a prefix of the batch.
        counted = len(indices) - int(plan.is_padding[start : start + batch_size].sum())
        if counted:
            metrics.add(scores[:counted], dataset.labels[indices[:counted]])
            coverage.count(indices[:counted])
        report(start + len(indices), total)


def _check_padding_is_last(plan: Shard) -> None:
    if (plan.is_padding[:-1] & ~plan.is_padding[1:]).any():
        raise UsageError("a shard's padding must come after all samples that count")


def _check_agreement(backend: BaseDistBackend, settings: tuple[Any, ...]) -> None:
    """Every rank sees every rank's settings, so every rank raises; also the common start."""
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
