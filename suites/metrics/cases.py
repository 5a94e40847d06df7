"""Every metric, samples for it, and its result over shards of them in several worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from disteval.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    BaseMetric,
    CalibrationError,
    ConfusionMatrix,
    CrossEntropy,
    ExactMatch,
    Mean,
    MultiLabel,
    Perplexity,
    Regression,
    Retrieval,
    Segmentation,
)
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import run_ranks, values

SIZE = 40
random = np.random.default_rng(0)
scores = random.normal(size=(SIZE, 4)).astype(np.float32)
scores[3] = scores[4, 0]  # so that there are equal scores, within a sample and of several
probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
classes = random.integers(0, 4, SIZE)
places = random.integers(0, 4, (SIZE, 5))
logits = random.normal(size=(SIZE, 5, 4))
mask = np.arange(5) < random.integers(1, 6, SIZE)[:, None]
losses = random.normal(size=SIZE) * 10.0 ** random.integers(-30, 30, SIZE)
losses[3] = -0.0


class Entries(BaseMetric):
    """A metric whose result is the list of its entries, whose order therefore matters."""

    def add(self, predictions: Any, labels: Any = None, *, ids: Any = None) -> None:
        rows = np.asarray(predictions).tolist()
        self._extend(rows if labels is None else zip(rows, np.asarray(labels).tolist()), ids)  # noqa: B905

    def compute_metric(self, results: list[Any]) -> Any:
        return results


class Case(NamedTuple):
    """A metric, and what its ``add`` takes by position and by name: one row for each sample."""

    make: Callable[[], Any]
    args: tuple[Any, ...]
    named: dict[str, Any]


SUMS: dict[str, Case] = {
    "accuracy": Case(lambda: Accuracy((1, 2), counts=True), (scores, classes), {}),
    "calibration error": Case(CalibrationError, (probabilities, classes), {}),
    "confusion matrix": Case(lambda: ConfusionMatrix(4), (scores, classes), {}),
    "cross-entropy": Case(CrossEntropy, (scores, classes), {}),
    "exact match": Case(ExactMatch, (places[:, :1] % 2, places[:, :1] // 2), {}),
    "mean": Case(Mean, (losses,), {}),
    "several labels": Case(lambda: MultiLabel(4, (0.0, 0.5)), (scores, places[:, :4] > 1), {}),
    "perplexity": Case(
        Perplexity,
        (logits, places),
        {"mask": mask, "byte_counts": random.integers(1, 9, SIZE)},
    ),
    "regression": Case(Regression, (scores[:, 0], scores[:, 1]), {}),
    "retrieval": Case(lambda: Retrieval((1, 3)), (scores, places[:, :4] + 1), {}),
    "segmentation": Case(lambda: Segmentation(4, 3), (places, places[::-1].copy()), {}),
}
"""Metrics that follow from sums."""

CASES: dict[str, Case] = {
    **SUMS,
    "auroc": Case(AUROC, (scores[:, 0], classes > 1), {}),
    "average precision": Case(AveragePrecision, (scores[:, 0], classes > 1), {}),
    "entries": Case(Entries, (losses, classes), {}),
    "entries that are lists": Case(Entries, (scores,), {}),
}


def alone(metric: BaseMetric, args: Any, named: Mapping[str, Any], rows: Any = slice(None)) -> Any:
    """Return what a metric finds of some rows in one process."""
    metric.dist_backend = "non_dist"
    metric.add(
        *(np.asarray(array)[rows] for array in args),
        **{name: np.asarray(array)[rows] for name, array in named.items()},
    )
    return metric.compute()


def assert_same(found: Any, expected: Any) -> None:
    """Check that two results are equal to the last bit, at any depth."""
    if isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected, strict=not np.isscalar(expected))


def everywhere(
    make: Callable[[], BaseMetric],
    *arrays: Any,
    sizes: tuple[int, ...] = (1, 2, 3, 5),
    **named: Any,
) -> list[Any]:
    """Return the results on all ranks of all worlds, with ids, in batches of other sizes.

    Each rank also adds sample 0, and some ranks may have no other.

    Args:
        make: Makes the metric.
        *arrays: What `add` takes, one entry for each sample.
        sizes: The world sizes.
        **named: More of that, by name.
    """
    found, size = [], len(arrays[0])
    for world in sizes:
        mine = [np.arange(size)[::-1][rank::world] for rank in range(world)]
        shards = [[*np.array_split(each, 1 + world % 3), np.array([0])] for each in mine]
        found += with_ids(Case(make, arrays, named), shards, size)
    return found


def with_ids(case: Case, shards: list[list[Any]], size: int | None) -> list[Any]:
    """Return the results on ranks that add these batches of ids."""

    def rank(backend: ThreadsDist) -> Any:
        metric = case.make()
        metric.dist_backend = backend
        for batch in shards[backend.rank]:
            ids = np.asarray(batch, dtype=np.int64)
            some = {name: array[ids] for name, array in case.named.items()}
            metric.add(*(array[ids] for array in case.args), **some, ids=ids)
        return metric.compute(size)

    return values(run_ranks(len(shards), rank))
