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

from harness.contract import BaseDistBackend
from harness.datasets.base import ArrayDataset
from harness.errors import UsageError
from harness.metrics.base import BaseMetric
from harness.sharding import ShardPlan

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
        seconds: From the first batch, when all ranks were ready, to the last metric's result.
    """

    metrics: dict[str, Any]
    size: int
    evaluated: int
    padded: int
    world_size: int
    batch_size: int
    seconds: float

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

    Raises:
        UsageError: ``batch_size`` is below 1, ``predict`` returned another number of rows, or the
            ranks do not evaluate the same thing (on every rank).
        RankError: On every rank, when a metric could not be computed.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size must be an integer from 1 up, not {batch_size!r}")
    plan = ShardPlan(len(dataset), backend.world_size, backend.rank, mode, pad)
    for metric in metrics.values():
        metric.dist_backend = backend
        metric.reset()
    _check_agreement(backend, (len(dataset), batch_size, mode, pad, list(metrics)))

    begin = time.perf_counter()
    with _reporting(progress, backend.rank, len(plan)) as report:
        _run_shard(predict, dataset, metrics, plan, batch_size, report)
    results = {name: metric.compute() for name, metric in metrics.items()}
    seconds = time.perf_counter() - begin

    shards = backend.all_gather_object((plan.num_samples, len(plan)))
    evaluated = sum(counted for counted, _ in shards)
    return Evaluation(
        metrics=results,
        size=len(dataset),
        evaluated=evaluated,
        padded=sum(seen for _, seen in shards) - evaluated,
        world_size=backend.world_size,
        batch_size=batch_size,
        seconds=seconds,
    )


def _run_shard(
    predict: Predict,
    dataset: ArrayDataset,
    metrics: Mapping[str, BaseMetric],
    plan: ShardPlan,
    batch_size: int,
    report: Progress,
) -> None:
    batch = np.zeros((batch_size, *dataset.images.shape[1:]), dtype=np.uint8)
    for start in range(0, len(plan), batch_size):
        indices = plan.indices[start : start + batch_size]
        np.take(dataset.images, indices, axis=0, out=batch[: len(indices)])
        scores = predict(batch)
        if len(scores) != batch_size:
            raise UsageError(
                f"predict got {batch_size} pictures and returned {len(scores)} rows of scores; "
                f"it must return one for each picture"
            )
        # Padding sits at the end of a shard, so what counts is a prefix of the batch.
        counted = len(indices) - int(plan.is_padding[start : start + batch_size].sum())
        if counted:
            labels = dataset.labels[indices[:counted]]
            for metric in metrics.values():
                metric.add(scores[:counted], labels)
        report(start + len(indices), len(plan))


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
