"""Each metric gives one result for arrays of NumPy, torch, JAX and TensorFlow, and for lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disteval.metrics import (
    Accuracy,
    BaseMetric,
    Bootstrap,
    CalibrationError,
    ExactMatch,
    Grouped,
    MultiLabel,
    Perplexity,
    Regression,
    Retrieval,
    Segmentation,
    Weighted,
)

from suites.helpers.needs import framework, needs

pytestmark = needs("torch", "jax", "tensorflow")  # one process has them all

random = np.random.default_rng(0)
scores = random.normal(size=(6, 4)).astype(np.float32)
classes = random.integers(0, 4, (6, 2))

CASES: dict[str, tuple[Callable[[], BaseMetric], tuple[np.ndarray, ...]]] = {
    "calibration error": (CalibrationError, (abs(np.tanh(scores[:, 0])), classes[:, 0] % 2)),
    "exact match": (ExactMatch, (classes, classes % 3, classes > 0)),
    "several labels": (lambda: MultiLabel(4), (scores, scores[:, ::-1].copy() > 0)),
    "perplexity": (Perplexity, (scores[None], classes[None, :, 0], classes[None, :, 1] > 0)),
    "log-probabilities": (Perplexity, (-abs(scores),)),
    "retrieval": (Retrieval, (scores[:, :2], classes + 1)),
    "segmentation": (lambda: Segmentation(4, 0), (classes, classes[::-1].copy())),
    "regression": (Regression, (scores[:, 0], scores[:, 1])),
}
"""Metrics, and what `add` takes."""


def forms(form: str) -> Callable[[np.ndarray], Any]:
    """Return the function that makes an array of a framework from a NumPy array."""
    if form == "list":
        return np.ndarray.tolist
    if form == "torch":
        return lambda array: framework("torch").tensor(array, requires_grad=array.dtype.kind == "f")
    if form == "jax":
        return lambda array: framework("jax").numpy.asarray(array)
    return lambda array: framework("tensorflow").constant(array)


FORMS = ["list", "torch", "jax", "tensorflow"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_the_framework_of_an_array_changes_nothing(case: str, form: str) -> None:
    make, arrays = CASES[case]
    metric, same = make(), make()
    for each in (metric, same):
        each.dist_backend = "non_dist"
    metric.add(*arrays)
    same.add(*map(forms(form), arrays))
    expected, found = metric.compute(), same.compute()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize("form", FORMS)
def test_weights_groups_and_ids_may_be_of_any_framework(form: str) -> None:
    make = forms(form)
    weights, groups = abs(scores[:, 1]), classes[:, 1]
    results = []
    for convert in (np.asarray, make):
        metric = Grouped(Bootstrap(Weighted(Accuracy(dist_backend="non_dist")), resamples=20))
        named = {"weights": weights, "groups": groups, "ids": np.arange(6)}
        metric.add(
            convert(scores),
            convert(classes[:, 0]),
            **{name: convert(array) for name, array in named.items()},
        )
        results.append(metric.compute(size=6))
    assert results[0] == results[1]
    assert sum(results[0]["sizes"].values()) == 6


def test_texts_of_tensorflow_are_groups() -> None:
    metric = Grouped(Regression(dist_backend="non_dist"))
    metric.add([1.0, 2.0], [1.0, 2.0], groups=framework("tensorflow").constant(["de", "ä"]))
    assert metric.compute()["sizes"] == {"de": 1, "ä": 1}
