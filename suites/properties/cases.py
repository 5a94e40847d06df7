"""The samples, the models and the metrics of the properties; ranks import them, too."""

from __future__ import annotations

import importlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from disteval import HarnessError
from disteval.data import ShardedStream
from disteval.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    BaseMetric,
    Bootstrap,
    CalibrationError,
    ConfusionMatrix,
    CrossEntropy,
    ExactMatch,
    Grouped,
    Mean,
    MultiLabel,
    Perplexity,
    Regression,
    Retrieval,
    Segmentation,
    Weighted,
)

ARRAYS = ("numpy", "torch", "jax", "tensorflow", "mlx")
"""The frameworks whose arrays samples can be."""

CLASSES = 4
MOST = 40
"""The most samples of an example."""


def array(arrays: str, value: Any) -> Any:
    """Return an array of a framework with the values of one of NumPy."""
    if arrays == "numpy":
        return value
    module = importlib.import_module({"jax": "jax.numpy", "mlx": "mlx.core"}.get(arrays, arrays))
    make = {"torch": "as_tensor", "tensorflow": "constant"}.get(arrays, "array")
    return getattr(module, make)(value)


def bits(value: Any) -> Any:
    """Return what is equal for two results exactly if they have the same types and bits."""
    if isinstance(value, Mapping):
        return {key: bits(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    return type(value).__name__, value


def error_of(backend: Any, function: Callable[[], Any]) -> tuple[str, set[int]]:
    """Return the error that a function raises on every rank: its class, and the numbers it names.

    The collective that compares the ranks' errors shows that the next collective works.
    """
    try:
        said = "", f"it returned {function()}"
    except HarnessError as error:
        said = type(error).__name__, str(error)
    heard = backend.all_gather_object(said)
    if heard != [said] * backend.world_size:
        return f"ranks say different things: {heard}", set()
    return said[0], set(map(int, re.findall(r"\d+", said[1])))


# Samples ------------------------------------------------------------------------------------

_random = np.random.default_rng(0)
SCORES = (_random.integers(-8, 9, (MOST, CLASSES)) / 4).astype(np.float32)
LABELS = _random.integers(0, CLASSES, MOST).astype(np.int32)
RIGHT = SCORES.argmax(axis=1) == LABELS
LENGTHS = 1 + _random.integers(0, 5, MOST)


def columns(size: int, arrays: str = "numpy") -> dict[str, Any]:
    """Return samples that know their numbers, as a dict of arrays."""
    numbers = np.arange(size, dtype=np.int32)
    found = {"number": numbers, "scores": SCORES[:size], "label": LABELS[:size]}
    return {name: array(arrays, column) for name, column in found.items()}


def rows(size: int, arrays: str = "numpy") -> list[dict[str, Any]]:
    """Return the same samples as a list, with tokens of which some have more than others."""
    return [
        {
            "number": i,
            "scores": array(arrays, SCORES[i]),
            "label": int(LABELS[i]),
            "tokens": np.full(LENGTHS[i], i),
        }
        for i in range(size)
    ]


class Indexed:
    """Samples of a class of the user's, with a length and an index."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        return self._rows[number]


class Stream:
    """A function that returns an iterator over samples."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __call__(self) -> Any:
        return iter(self._rows)


def shards(rows: list[Any]) -> ShardedStream:
    """Return samples as a stream of shards, of which some are empty and one is longer."""
    ends = [0, 0, len(rows) // 5, len(rows) // 5, len(rows) // 2, len(rows)]
    parts = list(enumerate(pairwise(ends)))
    return ShardedStream(parts, lambda part: iter(rows[slice(*part[1])]))


OF_ROWS: dict[str, Callable[[list[Any]], Any]] = {
    "rows": list, "indexed": Indexed, "stream": Stream, "shards": shards,
}  # fmt: skip
"""Each kind of samples that is made of a list of them."""


def _of_rows(kind: str) -> Callable[[int, str], Any]:
    return lambda size, arrays: OF_ROWS[kind](rows(size, arrays))


SAMPLES: dict[str, Callable[[int, str], Any]] = {
    "columns": columns, **{kind: _of_rows(kind) for kind in OF_ROWS},
}  # fmt: skip
"""Each kind of samples: makes so many of them, with the arrays of a framework."""


class Model:
    """A model whose output for a sample does not depend on its batch.

    Args:
        factor: What scores are multiplied by.

    Attributes:
        calls: The number of rows of each call.
        seen: The numbers of the samples that it was given.
    """

    def __init__(self, factor: int = 2) -> None:
        self._factor = factor
        self.calls: list[int] = []
        self.seen: set[int] = set()

    def __call__(self, batch: Any) -> Any:
        self.calls.append(len(batch["number"]))
        self.seen.update(np.asarray(batch["number"]).tolist())
        return {"scores": batch["scores"] * self._factor, "number": batch["number"]}


def scored(outputs: Any, batch: Any) -> tuple[Any, Any]:
    """Return what a metric of scores and labels takes."""
    return outputs["scores"], batch["label"]


class Numbers(BaseMetric):
    """A metric whose result is the numbers of the samples that it was given."""

    def add(self, outputs: Any, labels: Any = None, *, ids: Any = None) -> None:
        self._extend(np.asarray(outputs["number"]).tolist(), ids)

    def compute_metric(self, results: list[Any]) -> list[Any]:
        return results


# Metrics ------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A metric, and what its `add` takes: an entry for each of `MOST` samples.

    Attributes:
        make: Makes the metric.
        args: The positional arguments.
        named: The named ones.
    """

    make: Callable[[], BaseMetric]
    args: tuple[Any, ...]
    named: dict[str, Any]

    def add(self, metric: Any, ids: Any, arrays: str = "numpy") -> None:
        """Add a batch of samples, by their numbers."""
        args = (array(arrays, each[ids]) for each in self.args)
        metric.add(*args, **{name: each[ids] for name, each in self.named.items()}, ids=ids)

    def alone(self, ids: Sequence[int]) -> Any:
        """Return what one process finds for samples, each of which it adds once and in order."""
        metric = self.make()
        metric.dist_backend = "non_dist"
        self.add(metric, np.array(ids))
        return metric.compute()


class Entries(BaseMetric):
    """A metric whose result is the list of its entries, whose order therefore matters."""

    def add(self, outputs: Any, labels: Any = None, *, ids: Any = None) -> None:
        rows = np.asarray(outputs).tolist()
        self._extend(rows if labels is None else zip(rows, np.asarray(labels).tolist()), ids)  # noqa: B905

    def compute_metric(self, results: list[Any]) -> list[Any]:
        return results


_losses = _random.normal(size=MOST) * 10.0 ** _random.integers(-30, 30, MOST)
_losses = _losses.astype(np.float32)  # all that JAX and MLX hold as they come
_probabilities = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
_tokens = _random.integers(0, CLASSES, (MOST, 5))
_logits = _random.normal(size=(MOST, 5, CLASSES)).astype(np.float32)
_masked = {
    "mask": np.arange(5) < _random.integers(1, 6, MOST)[:, None],
    "byte_counts": _random.integers(1, 9, MOST),
}
_groups = {"groups": np.array(["a", "b", "c"])[_random.integers(0, 3, MOST)]}
_weights = {"weights": _random.lognormal(0, 20, MOST)}
_labelled = (SCORES, LABELS)

METRICS: dict[str, Case] = {
    "accuracy": Case(lambda: Accuracy((1, 2), counts=True), _labelled, {}),
    "AUROC": Case(AUROC, (SCORES[:, 0], np.arange(MOST) % 2), {}),
    "average precision": Case(AveragePrecision, (SCORES[:, 0], np.arange(MOST) % 2), {}),
    "calibration error": Case(CalibrationError, (_probabilities, LABELS), {}),
    "confusion matrix": Case(lambda: ConfusionMatrix(CLASSES), _labelled, {}),
    "cross-entropy": Case(CrossEntropy, _labelled, {}),
    "entries": Case(Entries, (SCORES,), {}),
    "exact match": Case(ExactMatch, (_tokens % 2, _tokens // 2), {}),
    "mean": Case(Mean, (_losses,), {}),
    "several labels": Case(
        lambda: MultiLabel(CLASSES, (0.0, 0.5)), (SCORES, _tokens[:, :4] > 1), {}
    ),
    "perplexity": Case(Perplexity, (_logits, _tokens), _masked),
    "regression": Case(Regression, (SCORES[:, 0], SCORES[:, 1]), {}),
    "retrieval": Case(lambda: Retrieval((1, 3)), (SCORES, _tokens[:, :4] + 1), {}),
    "segmentation": Case(lambda: Segmentation(CLASSES, 3), (_tokens, _tokens[::-1].copy()), {}),
    "weighted mean": Case(lambda: Weighted(Mean()), (_losses,), _weights),
    "grouped accuracy": Case(lambda: Grouped(Accuracy()), _labelled, _groups),
    "bootstrap of accuracy": Case(lambda: Bootstrap(Accuracy(), resamples=8), _labelled, {}),
    "all three": Case(
        lambda: Grouped(Bootstrap(Weighted(Mean()), resamples=8)), (_losses,), _groups | _weights
    ),
}
"""Each metric by its name."""
