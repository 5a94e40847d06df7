"""The confusion matrix against counting by hand, and what follows from it against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from disteval.metrics import Accuracy, ConfusionMatrix
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.metrics.test_accuracy import batches


@given(batches(min_size=1))
def test_it_counts_the_first_best_class_and_its_diagonal_is_what_accuracy_counts(
    drawn: tuple[np.ndarray, np.ndarray],
) -> None:
    scores, labels = drawn
    matrix = np.zeros((scores.shape[1],) * 2, int)
    for row, label in zip(scores.tolist(), labels, strict=True):
        matrix[label, row.index(max(row))] += 1
    found = ConfusionMatrix(scores.shape[1])(scores, labels)
    np.testing.assert_array_equal(found["matrix"], matrix)
    expected = Accuracy(counts=True)(scores, labels)
    assert np.trace(found["matrix"]) == expected["correct_top1"]
    assert found["f1_micro"] == found["recall_micro"] == expected["top1"]


@needs("sklearn")
def test_the_numbers_of_each_class_and_their_means_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)

    @given(pairs, st.integers(5, 7))
    @settings(max_examples=40)
    def check(drawn: list[tuple[int, int]], classes: int) -> None:
        labels, predicted = (list(column) for column in zip(*drawn, strict=True))
        found = ConfusionMatrix(classes)(predicted, labels)
        given_: dict[str, Any] = {"labels": range(classes), "zero_division": 0}
        np.testing.assert_array_equal(
            found["matrix"], confusion_matrix(labels, predicted, labels=range(classes))
        )
        for average in ("macro", "micro", "weighted"):
            expected = precision_recall_fscore_support(labels, predicted, average=average, **given_)
            for name, value in zip(("precision", "recall", "f1"), expected, strict=False):
                assert found[f"{name}_{average}"] == pytest.approx(value, rel=1e-12, abs=1e-15)
        expected = precision_recall_fscore_support(labels, predicted, average=None, **given_)
        for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
            np.testing.assert_allclose(found[name], values, rtol=1e-15)
            assert found[name].shape == (classes,)

    check()


@pytest.mark.parametrize("classes", [1, 2, 256, 257, 1000])
def test_every_class_has_its_cell(classes: int) -> None:
    labels = np.arange(classes)
    found = ConfusionMatrix(classes)(labels[::-1], labels)
    assert found["matrix"].dtype == np.int64
    np.testing.assert_array_equal(found["matrix"], np.eye(classes, dtype=np.int64)[::-1])


def test_the_form_of_scores_does_not_matter() -> None:
    scores = np.array([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]])
    for form in (scores, scores.astype(np.float16), scores.astype(int), scores.tolist(), [1, 0]):
        found = ConfusionMatrix(3)(form, np.array([[1.0], [2.0]]))["matrix"]
        assert found.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_large_integer_scores_are_compared_as_they_are() -> None:
    scores = np.array([[2**60, 2**60 + 1]])
    assert ConfusionMatrix(2)(scores, [1])["matrix"].tolist() == [[0, 0], [0, 1]]
