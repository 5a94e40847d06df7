"""Weighted samples against repeated samples and scikit-learn."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import (
    Accuracy,
    ConfusionMatrix,
    Mean,
    MetricGroup,
    Regression,
    SampleRows,
    SummableMetric,
    Weighted,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.metrics.cases import SIZE, SUMS, alone, assert_same

TIMES = np.random.default_rng(1).integers(0, 4, SIZE)


def as_floats(result: Any, unit: float = 1.0) -> Any:
    """Return a result whose counts are floats, in units of a weight."""
    if isinstance(result, dict):
        return {key: as_floats(value, unit) for key, value in result.items()}
    whole = np.asarray(result).dtype.kind == "i"
    return result * unit if whole else result


@pytest.mark.parametrize("unit", [1.0, 0.125, 2.0**-200, 2.0**-249])
@pytest.mark.parametrize("case", SUMS)
def test_a_weight_repeats_a_sample(case: str, unit: float) -> None:
    make, args, named = SUMS[case]
    repeated = [np.repeat(array, TIMES, axis=0) for array in args]
    expected = alone(make(), repeated, {k: np.repeat(v, TIMES, axis=0) for k, v in named.items()})
    found = alone(Weighted(make()), args, {**named, "weights": TIMES * unit})
    assert_same(found, as_floats(expected, unit))


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.one_of(st.just(0.0), st.floats(2.0**-256, 2.0**256)),
        ),
        min_size=1,
    )
)
def test_the_weighted_mean_is_rounded_once(pairs: list[tuple[float, float]]) -> None:
    values, weights = zip(*pairs, strict=True)
    total = sum(map(Fraction, weights))
    if total == 0:
        return
    part = sum(Fraction(v) * Fraction(w) for v, w in pairs)
    metric = Weighted(Mean(dist_backend="non_dist"))
    assert metric(values, weights=weights) == {"mean": float(part / total)}


@needs("sklearn")
def test_it_agrees_with_scikit_learn() -> None:
    from sklearn import metrics as sk

    random = np.random.default_rng(3)
    size = 300
    weights = random.exponential(size=size)
    scores, labels = random.normal(size=(size, 5)), random.integers(0, 5, size)
    predicted = scores.argmax(axis=1)
    accuracy = alone(Weighted(Accuracy()), (scores, labels), {"weights": weights})
    expected = sk.accuracy_score(labels, predicted, sample_weight=weights)
    assert accuracy["top1"] == pytest.approx(expected, rel=1e-12)

    found = alone(Weighted(ConfusionMatrix(5)), (scores, labels), {"weights": weights})
    matrix = sk.confusion_matrix(labels, predicted, sample_weight=weights)
    np.testing.assert_allclose(found["matrix"], matrix, rtol=1e-12)
    for average in ("macro", "micro", "weighted"):
        fractions = sk.precision_recall_fscore_support(
            labels, predicted, average=average, sample_weight=weights
        )
        for name, value in zip(("precision", "recall", "f1"), fractions, strict=False):
            assert found[f"{name}_{average}"] == pytest.approx(value, rel=1e-12)

    true = random.normal(3, 2, size)
    guess = true + random.normal(0.5, 1, size)
    found = alone(Weighted(Regression()), (guess, true), {"weights": weights})
    for name, of in (
        ("mae", sk.mean_absolute_error),
        ("mse", sk.mean_squared_error),
        ("r2", sk.r2_score),
        ("explained_variance", sk.explained_variance_score),
    ):
        assert found[name] == pytest.approx(of(true, guess, sample_weight=weights), rel=1e-12)


def test_one_sample_gives_what_it_gives_without_weights() -> None:
    found = alone(Weighted(Regression()), ([1.0], [2.0]), {"weights": [0.3]})
    assert_same(found, alone(Regression(), ([1.0], [2.0]), {}))
    assert math.isnan(found["r2"])


def test_a_sample_of_weight_0_does_not_count() -> None:
    mean = Weighted(Mean(dist_backend="non_dist"))
    assert mean([1.0, math.inf, 3.0], weights=[1, 0, 3]) == {"mean": 2.5}
    with pytest.raises(UsageError, match=r"\b2 .*\b0\b"):
        mean([1.0, 2.0], weights=[0, 0])


def test_a_sample_with_several_rows_has_one_weight() -> None:
    mean = Weighted(Mean(dist_backend="non_dist"))
    mean.add([1.0, 2.0, 6.0], weights=[1, 2], ids=SampleRows([0, 1], [2, 1]))
    assert mean.compute(size=2) == {"mean": 3.75}


class Own(SummableMetric):
    """A metric whose result is any function of the number of samples that are 1, and of all."""

    def __init__(self, function: Any) -> None:
        super().__init__(dist_backend="non_dist")
        self.function = function

    def add(self, values: Any, *, ids: Any = None) -> None:
        self._append(np.asarray(values), ids)

    def sums_of(self, column: Any) -> Any:
        return np.array([column.sum()], dtype=np.int64)

    def from_sums(self, sums: Any, size: int) -> Any:
        return {"result": self.function(int(sums[0]), size)}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda ones, size: ones / size, 0.75),
        (lambda ones, size: np.array([ones, size]), [1.5, 2.0]),
        (lambda ones, size: ones, 1.5),
        (lambda ones, size: 5, 5),
        (lambda ones, size: "text", "text"),
        (lambda ones, size: None, None),
        (lambda ones, size: {"of": {"ones": ones / size}}, {"of": {"ones": 0.75}}),
    ],
)
def test_counts_are_sums_of_weights_and_what_does_not_depend_on_them_stays(
    function: Any, expected: Any
) -> None:
    found = Weighted(Own(function))([1, 0, 1, 1], weights=[0.5, 0.5, 0.25, 0.75])["result"]
    assert_same(found, np.array(expected) if isinstance(expected, list) else expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda ones, size: (ones + 1) / (size + 2),
        lambda ones, size: ones / (size - 1),
        lambda ones, size: float(ones),
        lambda ones, size: ones * size,
        lambda ones, size: {"of": np.array([ones / (size - 1)])},
    ],
)
@pytest.mark.parametrize("weights", [np.ones(4), np.array([0.1, 0.2, 0.3, 7.0])])
def test_what_depends_on_the_number_of_samples_is_refused_by_name(
    function: Any, weights: Any
) -> None:
    with pytest.raises(UsageError, match=r"Own\['result'\]"):
        Weighted(Own(function))([1, 0, 1, 1], weights=weights)


def test_a_metric_that_needs_int64_is_refused() -> None:
    metric = Weighted(Own(lambda ones, size: np.int64(ones) / size))
    with pytest.raises(UsageError, match=r"Own .*int64"):
        metric([1, 0], weights=[1, 1])


def test_the_metric_that_was_given_stays_as_it_was() -> None:
    mean = Mean(dist_backend="non_dist")
    mean.add([5.0])
    weighted = Weighted(mean)
    weighted.add([1.0, 2.0], weights=[3, 1])
    assert (weighted.compute(), mean.compute()) == ({"mean": 1.25}, {"mean": 5.0})


def test_a_group_of_metrics_passes_weights_on() -> None:
    group = MetricGroup({"mean": Weighted(Mean()), "errors": Weighted(Mean())}, "non_dist")
    group.add([1.0, 2.0], weights=[3, 1], ids=[0, 1])
    assert group.compute(size=2) == {"mean": {"mean": 1.25}, "errors": {"mean": 1.25}}
