"""Accuracy agrees with a reference that sorts, for NumPy arrays."""

import math
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import Accuracy
from hypothesis import given
from hypothesis import strategies as st

# Few values, so that ties are common.
SCORES = [-math.inf, -1.5, -0.25, 0.0, 0.1, 0.25, 1.0, math.inf]


@st.composite
def batches(draw: st.DrawFn, min_size: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores (N, C) with ties and infinities, and labels (N,)."""
    size, classes = draw(st.integers(min_size, 8)), draw(st.integers(1, 6))
    row = st.lists(st.sampled_from(SCORES), min_size=classes, max_size=classes)
    scores = draw(st.lists(row, min_size=size, max_size=size))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=size, max_size=size))
    return (
        np.array(scores, dtype=np.float32).reshape(size, classes),
        np.array(labels, dtype=np.int64),
    )


def oracle(scores: np.ndarray, labels: np.ndarray, k: int, thr: float | None) -> int:
    """Count right samples by sorting classes: falling score, rising index."""
    right = 0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        score = row[label]
        above = thr is None or score > float(np.float32(thr))
        right += label in order[:k] and above
    return right


@given(batches(min_size=1), st.data())
def test_agrees_with_sorting(batch: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    scores, labels = batch
    k = data.draw(st.integers(1, scores.shape[1]))
    thr = data.draw(st.sampled_from([None, -0.25, 0.0, 0.1, 0.25]))
    accuracy = Accuracy(k, thr, counts=True)
    found = accuracy(scores, labels)
    right = oracle(scores, labels, k, thr)
    assert found[f"correct_top{k}"] == right
    assert found["size"] == len(labels)
    assert found[f"top{k}"] == right / len(labels)


@given(batches(min_size=1), st.sampled_from([None, 0.0]))
def test_the_form_of_labels_does_not_matter(
    batch: tuple[np.ndarray, np.ndarray], thr: float | None
) -> None:
    scores, labels = batch
    accuracy = Accuracy(1, thr, counts=True)
    expected = accuracy(scores, labels)
    for form in (
        labels[:, None], labels.astype(np.int8), labels.astype(np.float32), labels.tolist(),
    ):  # fmt: skip
        assert accuracy(scores, form) == expected
    assert accuracy(scores.tolist(), labels) == expected


def test_keys() -> None:
    scores, labels = np.eye(4), np.arange(4)
    assert Accuracy()(scores, labels) == {"top1": 1.0}
    assert Accuracy((1, 3), 0.5)(scores, labels) == {"top1": 1.0, "top3": 1.0}
    assert Accuracy(2, (0.1, None))(scores, labels) == {"top2_thr-0.10": 1.0, "top2_no-thr": 1.0}


def test_many_pairs_of_k_and_threshold() -> None:
    scores = np.arange(36, dtype=np.float64).reshape(3, 12) / 36
    labels = np.array([0, 5, 11])
    thrs = (None, 0.2, 0.5)
    found = Accuracy(range(1, 13), thrs, counts=True)(scores, labels)
    for k in range(1, 13):
        for thr, end in zip(thrs, ("_no-thr", "_thr-0.20", "_thr-0.50"), strict=True):
            assert found[f"correct_top{k}{end}"] == oracle(scores, labels, k, thr)


def test_the_default_is_true_top_k_of_negative_logits() -> None:
    scores, labels = np.array([[-3.0, -2.0]]), np.array([1])
    assert Accuracy()(scores, labels) == {"top1": 1.0}
    assert Accuracy(thrs=0.0)(scores, labels) == {"top1": 0.0}


def test_a_score_must_be_strictly_above_its_threshold_in_its_own_precision() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        scores = np.array([[0.1, 0.0]], dtype=dtype)
        # float16's 0.1 is a little under 0.1, and float32's and float64's are the threshold itself.
        assert Accuracy(thrs=0.1)(scores, [0]) == {"top1": 0.0}
    assert Accuracy(thrs=0.1)(np.array([[0.11, 0.0]], dtype=np.float32), [0]) == {"top1": 1.0}
    # float16's 0.3 is a little over 0.3 in float32; float64 tells 0.1 from the number after it.
    assert Accuracy(thrs=0.3)(np.array([[0.3, 0.0]], dtype=np.float16), [0]) == {"top1": 1.0}
    assert Accuracy(thrs=0.1)(np.array([[np.nextafter(0.1, 1), 0.0]]), [0]) == {"top1": 1.0}
    # Nor does a threshold bring a precision of its own, or lose its fraction to whole numbers.
    given = Accuracy(thrs=np.float64(0.1))
    assert given(np.array([[0.1, 0.0]], dtype=np.float32), [0]) == {"top1": 0.0}
    assert Accuracy(thrs=-0.5)(np.array([[0, -1]]), [0]) == {"top1": 1.0}


def test_predicted_labels() -> None:
    accuracy = Accuracy((1, 2), counts=True)
    found = accuracy(np.array([0, 2, 1, 3]), np.array([[0], [2], [2], [3]]))
    assert found == {"top1": 0.75, "top2": 0.75, "correct_top1": 3, "correct_top2": 3, "size": 4}


def test_predicted_labels_have_no_score_to_compare_with_a_threshold() -> None:
    with pytest.raises(UsageError, match=r"thrs=\(0.5,\)"):
        Accuracy(thrs=0.5).add([1, 2], [1, 2])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.uint64, np.float16, np.float64])
def test_labels_of_any_dtype_keep_their_values(dtype: Any) -> None:
    labels = np.array([[0], [1]], dtype=dtype)
    assert Accuracy(counts=True)(np.array([0, 1]), labels)["correct_top1"] == 2


def test_all_of_int64_may_be_a_label() -> None:
    labels = [np.iinfo(np.int64).min, -1, np.iinfo(np.int64).max]
    assert Accuracy()(labels, labels) == {"top1": 1.0}
