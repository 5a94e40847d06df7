"""Each metric gives one result for arrays of NumPy, torch, JAX and TensorFlow, and for lists."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval.metrics import Accuracy, Bootstrap, Grouped, Mean, Perplexity, Weighted

from suites.helpers.needs import framework, needs
from suites.metrics.cases import CASES, SIZE, alone, assert_same
from suites.properties.cases import LABELS, SCORES, Case, array

pytestmark = needs("torch", "jax", "tensorflow")  # one process has them all

METRICS = {name: case for name, case in CASES.items() if not name.startswith("entries")}
METRICS["log-probabilities"] = Case(Perplexity, (-abs(SCORES),), {})
FORMS = ["list", "torch", "jax", "tensorflow"]


def forms(form: str) -> Callable[[np.ndarray], Any]:
    """Return the function that makes an array of a framework from a NumPy array."""
    if form == "torch":
        return lambda values: framework("torch").tensor(
            values, requires_grad=values.dtype.kind == "f"
        )
    return np.ndarray.tolist if form == "list" else partial(array, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", METRICS)
def test_the_framework_of_an_array_changes_nothing(name: str, form: str) -> None:
    make, args, named = METRICS[name]
    # JAX has no float64 unless it is told to.
    args = tuple(a.astype(np.float32) if a.dtype.kind == "f" else a for a in args)
    metric = make()
    metric.dist_backend = "non_dist"
    convert = forms(form)
    metric.add(*map(convert, args), **{key: convert(array) for key, array in named.items()})
    assert_same(metric.compute(), alone(make(), args, named))


@pytest.mark.parametrize("form", FORMS)
def test_weights_groups_and_ids_may_be_of_any_framework(form: str) -> None:
    weights, groups = 1 + abs(SCORES[:, 1]), np.arange(SIZE) * 7 % 3
    results = []
    for convert in (np.asarray, forms(form)):
        metric = Grouped(Bootstrap(Weighted(Accuracy(dist_backend="non_dist")), resamples=20))
        named = {"weights": weights, "groups": groups, "ids": np.arange(SIZE)}
        converted: dict[str, Any] = {name: convert(array) for name, array in named.items()}
        metric.add(convert(SCORES), convert(LABELS), **converted)
        results.append(metric.compute(size=SIZE))
    assert results[0] == results[1]


def test_texts_of_tensorflow_are_groups() -> None:
    metric = Grouped(Mean(dist_backend="non_dist"))
    metric.add([1.0, 2.0], groups=framework("tensorflow").constant(["de", "ä"]))
    assert metric.compute()["sizes"] == {"de": 1, "ä": 1}
