"""A data set is refused when its arrays can't be pictures and their labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.data import ArrayDataset
from disteval.data.base import check_samples

IMAGES, LABELS = np.zeros((2, 3, 4, 4), dtype=np.uint8), np.zeros(2, dtype=np.int64)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            IMAGES.astype(np.float32) + 0.25,
            LABELS,
            r"images holds float32 with values from 0.25 to 0.25; it must hold uint8 from 0 to 255",
        ),
        (IMAGES[0], LABELS, r"shape \(3, 4, 4\); it must be an array of shape \(N, C, H, W\)"),
        (IMAGES, LABELS.astype(np.int32), r"labels must be an int64 array .* not int32"),
        (IMAGES, LABELS[:1], r"of shape \(2,\), not int64 of shape \(1,\)"),
        (
            IMAGES,
            np.array([0, 7]),
            r"labels\[1\] is 7, and 1 of 2 labels are not from 0 to 0; name",
        ),
        (IMAGES.tolist(), LABELS, "images has the type list; it must be a NumPy array"),
        (None, LABELS, "images has the type NoneType; it must be a NumPy array"),
        (IMAGES, [0, 0], "labels has the type list; it must be a NumPy array"),
        (IMAGES, LABELS - 1, r"labels\[0\] is -1, and 2 of 2 labels are not from 0 to 0; name"),
    ],
)
def test_arrays_that_are_no_pictures_and_labels(images: Any, labels: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ArrayDataset("mine", images, labels, ("a",))


@pytest.mark.parametrize("classes", [3, "cat"])
def test_classes_are_names(classes: Any) -> None:
    with pytest.raises(UsageError, match=f"classes must be the names .*, not {classes!r}"):
        ArrayDataset("mine", IMAGES, LABELS, classes)


def test_labels_that_are_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"labels holds <U3; .* the numbers of classes, from 0 to"):
        check_samples(IMAGES, ["cat", "dog"], ("cat", "dog"))
