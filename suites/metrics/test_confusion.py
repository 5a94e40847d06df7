"""The confusion matrix against counting by hand, and what follows from it against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from disteval import ShardPlan, UsageError
from disteval.metrics import Accuracy, ConfusionMatrix
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.helpers.thread_world import run_ranks, values
from suites.metrics.test_accuracy import batches

MODES: Any = {"strided": "unzip", "contiguous": "cat"}


def predicted_by_sorting(scores: np.ndarray) -> list[int]:
    """Return the first class by falling score, rising index, NaN last."""
    return [
        min(range(len(row)), key=lambda c: (math.isnan(row[c]), -row[c] if row[c] == row[c] else c))
        for row in scores.tolist()
    ]


def counted(labels: Any, predicted: Any, classes: int) -> list[list[int]]:
    matrix = [[0] * classes for _ in range(classes)]
    for label, prediction in zip(labels, predicted, strict=True):
        matrix[label][prediction] += 1
    return matrix


def plain(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}


@given(batches(min_size=1), st.integers(1, 5), st.sampled_from(list(MODES)), st.integers(1, 4))
def test_it_counts_the_same_in_any_world(
    drawn: tuple[np.ndarray, np.ndarray], world: int, mode: Any, batch: int
) -> None:
    scores, labels = drawn
    classes = scores.shape[1]

    def rank(backend: ThreadsDist) -> Any:
        metric = ConfusionMatrix(classes, None, MODES[mode], backend)
        indices = ShardPlan(len(labels), world, backend.rank, mode, pad=True).indices
        for at in range(0, len(indices), batch):
            some = indices[at : at + batch]
            metric.add(scores[some], labels[some])
        return plain(metric.compute(size=len(labels)))

    alone = plain(ConfusionMatrix(classes)(scores, labels))
    assert alone["matrix"] == counted(labels, predicted_by_sorting(scores), classes)
    assert values(run_ranks(world, rank)) == [alone] * world


@given(batches(min_size=1))
def test_its_diagonal_is_what_accuracy_counts(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = drawn
    some = ~np.isnan(scores).all(axis=1)  # of nothing but NaN no class is right, but one predicted
    if some.any():
        found = ConfusionMatrix(scores.shape[1])(scores[some], labels[some])
        expected = Accuracy(counts=True)(scores[some], labels[some])
        assert np.trace(found["matrix"]) == expected["correct_top1"]
        assert found["f1_micro"] == found["recall_micro"] == expected["top1"]


@needs("sklearn")
def test_the_precision_recall_and_f1_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)

    @given(pairs, st.integers(5, 7))
    @settings(max_examples=40)
    def check(drawn: list[tuple[int, int]], classes: int) -> None:
        labels, predicted = (list(column) for column in zip(*drawn, strict=True))
        found = ConfusionMatrix(classes)(predicted, labels)
        settings: dict[str, Any] = {"labels": range(classes), "zero_division": 0}
        np.testing.assert_array_equal(
            found["matrix"], confusion_matrix(labels, predicted, labels=range(classes))
        )
        for average in ("macro", "micro", "weighted"):
            expected = precision_recall_fscore_support(
                labels, predicted, average=average, **settings
            )
            for name, value in zip(("precision", "recall", "f1"), expected, strict=False):
                assert found[f"{name}_{average}"] == pytest.approx(value, rel=1e-12, abs=1e-15)
        recall = precision_recall_fscore_support(labels, predicted, average=None, **settings)[1]
        np.testing.assert_array_equal(found["per_class_accuracy"], recall)

    check()


@pytest.mark.parametrize("classes", [1, 2, 256, 257, 1000])
def test_every_class_has_its_cell(classes: int) -> None:
    labels = np.arange(classes)
    found = ConfusionMatrix(classes)(labels[::-1], labels)
    assert found["matrix"].dtype == np.int64
    np.testing.assert_array_equal(found["matrix"], np.eye(classes, dtype=np.int64)[::-1])


def test_the_form_of_scores_does_not_matter() -> None:
    scores = np.array([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]])
    expected = plain(ConfusionMatrix(3)(scores, [1, 2]))
    assert expected["matrix"] == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
    for form in (scores.astype(np.float16), scores.astype(np.int64), scores.tolist(), [1, 0]):
        assert plain(ConfusionMatrix(3)(form, np.array([[1.0], [2.0]]))) == expected


def test_large_integer_scores_are_compared_as_they_are() -> None:
    scores = np.array([[2**60, 2**60 + 1]])
    assert ConfusionMatrix(2)(scores, [1])["matrix"].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((2, 4)), [0, 1], r"scores of shape \(N, 3\) or classes of .* not \(2, 4\)"),
        (np.zeros((2, 3, 1)), [0, 1], r"scores of shape \(N, 3\) .* not \(2, 3, 1\)"),
        (np.zeros((2, 3)), [0], r"shape \(2, 3\) and labels of shape \(1,\) do not have the same"),
        ([0, 3], [0, 1], "predictions must be whole numbers from 0 to 2, but row 1 has 3"),
        ([0, 1], [0, 3], "labels must be whole numbers from 0 to 2, but row 1 has 3"),
        ([0, 1], [0, math.inf], "from 0 to 2, but row 1 has inf"),
    ],
)
def test_bad_batches_are_named_and_add_nothing(predictions: Any, labels: Any, message: str) -> None:
    metric = ConfusionMatrix(3)
    metric.add([1], [2])
    with pytest.raises(UsageError, match=message):
        metric.add(predictions, labels)
    assert metric.compute()["matrix"].sum() == 1


@pytest.mark.parametrize("classes", [0, -1, 2.0, True, "3", None])
def test_a_number_of_classes_that_is_none_is_refused(classes: Any) -> None:
    with pytest.raises(UsageError, match="num_classes must be a whole number from 1 up, not"):
        ConfusionMatrix(classes)
