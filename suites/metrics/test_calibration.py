"""The calibration error against fractions and torchmetrics."""

from fractions import Fraction

import numpy as np
import pytest
from disteval.metrics import CalibrationError
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs

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
