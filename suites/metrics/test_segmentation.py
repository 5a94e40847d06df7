"""IoU and Dice against scikit-learn and torchmetrics."""

import math
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import Segmentation
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs

DRAWN = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1 << 30))


def drawn(size: int, classes: int, seed: int) -> tuple[Any, Any]:
    """Return predicted classes and labels, of which some are 255 and the first is not."""
    random = np.random.default_rng(seed)
    predicted, labels = random.integers(0, classes, (2, size, 3, 4))
    labels[random.random(labels.shape) < 0.3] = 255
    labels[0, 0, 0] = 0
    return predicted, labels


def plain(found: dict[str, Any]) -> str:
    return repr({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()})


@needs("sklearn")
def test_it_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import f1_score, jaccard_score

    @given(DRAWN)
    def check(of: tuple[int, int, int]) -> None:
        predicted, labels = drawn(*of)
        found = Segmentation(of[1], 255, dist_backend="non_dist")(predicted, labels)
        kept = labels != 255
        seen = np.isin(range(of[1]), [labels[kept], predicted[kept]])
        given = {"labels": range(of[1]), "average": None, "zero_division": 0}
        for name, score in (("iou", jaccard_score), ("dice", f1_score)):
            expected = np.array(score(labels[kept], predicted[kept], **given), dtype=float)
            expected[~seen] = np.nan
            np.testing.assert_allclose(found[name], expected, rtol=1e-14)
            assert found[f"mean_{name}"] == pytest.approx(np.nanmean(expected), rel=1e-14)
        assert found["accuracy"] == np.mean(labels[kept] == predicted[kept])

    check()


@needs("torch", "torchmetrics")
def test_it_agrees_with_torchmetrics() -> None:
    torch, torchmetrics = framework("torch"), framework("torchmetrics")
    predicted, labels = map(torch.tensor, drawn(9, 4, 0))
    oracle = torchmetrics.classification.MulticlassJaccardIndex(4, ignore_index=255)
    found = Segmentation(4, 255, dist_backend="non_dist")(predicted, labels)
    assert found["mean_iou"] == pytest.approx(oracle(predicted, labels).item(), rel=1e-6)


def test_scores_predict_the_best_class() -> None:
    predicted, labels = drawn(5, 4, 0)
    scores = np.moveaxis(np.eye(4)[predicted], -1, 1)
    scores[np.moveaxis(np.eye(4)[(predicted + 1) % 4], -1, 1) > 0] = -math.inf
    metric = Segmentation(4, 255, dist_backend="non_dist")
    assert plain(metric(scores, labels)) == plain(metric(predicted, labels))


def test_an_ignored_class_has_no_overlap_and_does_not_count_in_the_means() -> None:
    metric = Segmentation(3, 0, dist_backend="non_dist")
    found = metric([[0, 1, 2, 0]], [[0, 0, 2, 1]])  # class 0 is predicted where it counts as wrong
    np.testing.assert_array_equal(found["iou"], [math.nan, 0.0, 1.0])
    np.testing.assert_array_equal(found["dice"], [math.nan, 0.0, 1.0])
    assert (found["mean_iou"], found["mean_dice"], found["accuracy"]) == (0.5, 0.5, 0.5)
    assert metric([[0]], [[1]])["mean_iou"] == 0.0


def test_pictures_of_which_no_place_counts_are_an_error() -> None:
    metric = Segmentation(2, 255, dist_backend="non_dist")
    metric.add([[0]], [[255]])
    with pytest.raises(UsageError, match="no place counts"):
        metric.compute(size=1)
