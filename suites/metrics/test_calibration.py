"""The calibration error against fractions, torchmetrics and other worlds."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import CalibrationError
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.worlds import everywhere

PAIRS = st.lists(
    st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 1)),
    min_size=1,
    max_size=20,
)


def by_fractions(pairs: list[tuple[float, int]], bins: int) -> tuple[float, float]:
    members: list[list[Fraction]] = [[] for _ in range(bins)]
    for confidence, right in pairs:
        edges = [at / bins for at in range(1, bins)]
        members[sum(confidence >= edge for edge in edges)].append(Fraction(confidence) - right)
    gaps = [abs(sum(each, Fraction())) for each in members]
    largest = max(gap / len(each) for gap, each in zip(gaps, members, strict=True) if each)
    return float(sum(gaps, Fraction()) / len(pairs)), float(largest)


@given(PAIRS, st.integers(1, 20))
def test_it_is_the_nearest_to_the_true_one(pairs: list[tuple[float, int]], bins: int) -> None:
    confidence, labels = map(np.array, zip(*pairs, strict=True))
    found = CalibrationError(bins, dist_backend="non_dist")(confidence, labels)
    assert (found["calibration_error"], found["max_calibration_error"]) == by_fractions(pairs, bins)
    assert found["bin_counts"].sum() == len(pairs)


@settings(max_examples=15)
@given(PAIRS)
def test_it_is_the_same_in_any_world(pairs: list[tuple[float, int]]) -> None:
    confidence, labels = map(np.array, zip(*pairs, strict=True))
    results = everywhere(partial(CalibrationError, 4), confidence, labels)
    for found in results:
        assert found["calibration_error"] == by_fractions(pairs, 4)[0]
        for key, value in found.items():
            np.testing.assert_array_equal(value, results[0][key])


@needs("torch", "torchmetrics")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_agrees_with_torchmetrics(dtype: str) -> None:
    torch, torchmetrics = framework("torch"), framework("torchmetrics")
    random = np.random.default_rng(0)
    logits = torch.tensor(random.normal(0, 2, (300, 5)))
    scores, labels = logits.softmax(1).to(getattr(torch, dtype)), random.integers(0, 5, 300)
    found = CalibrationError(dist_backend="non_dist")(scores, labels)
    for norm, name in (("l1", "calibration_error"), ("max", "max_calibration_error")):
        oracle = torchmetrics.classification.MulticlassCalibrationError(5, n_bins=15, norm=norm)
        expected = oracle(scores.double(), torch.tensor(labels)).item()
        assert found[name] == pytest.approx(expected, abs=1e-6)
    oracle = torchmetrics.classification.BinaryCalibrationError(n_bins=10)
    expected = oracle(scores[:, 0].double(), torch.tensor(labels == 0)).item()
    metric = CalibrationError(10, dist_backend="non_dist")
    assert metric(scores[:, 0], labels == 0)["calibration_error"] == pytest.approx(expected, 1e-5)


def test_the_bins_show_confidence_and_accuracy() -> None:
    metric = CalibrationError(2, dist_backend="non_dist")
    found = metric([[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]], [0, 1, 1])
    assert found["bin_counts"].tolist() == [0, 3]
    assert found["bin_confidence"].tolist() == [0.0, 0.75]
    assert found["bin_accuracy"].tolist() == [0.0, 2 / 3]
    assert found["calibration_error"] == found["max_calibration_error"] == 0.25 / 3


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((1, 2, 2)), [0], r"shape \(N, C\) or \(N,\), not \(1, 2, 2\)"),
        (np.zeros((1, 0)), [0], r"not \(1, 0\)"),
        (np.zeros(2), [0], "do not have the same number of samples"),
        ([1.5], [0], r"probabilities from 0 to 1, but one is 1\.5; give the softmax"),
        ([-0.1], [0], r"but one is -0\.1"),
        ([math.nan], [0], "but one is nan"),
        ([[0.9, 0.9]], [0], r"must sum to 1, but those of one sum to 1\.8"),
        ([0.5], [2], "labels must be whole numbers from 0 to 1, but row 0 has 2"),
        ([[0.5, 0.5]], [2], "labels must be whole numbers from 0 to 1, but row 0 has 2"),
    ],
)
def test_bad_arguments_are_named_and_add_nothing(
    predictions: Any, labels: Any, message: str
) -> None:
    metric = CalibrationError(dist_backend="non_dist")
    metric.add([0.25], [0])
    with pytest.raises(UsageError, match=message):
        metric.add(predictions, labels)
    assert metric.compute(size=1)["calibration_error"] == 0.25


def test_bins_are_a_count() -> None:
    with pytest.raises(UsageError, match="bins must be a whole number from 1 up, not 0"):
        CalibrationError(0)
