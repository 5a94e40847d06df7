"""A data set is refused when its arrays can't be pictures and their labels."""

from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.data import ArrayDataset

IMAGES, LABELS = np.zeros((2, 3, 4, 4), dtype=np.uint8), np.zeros(2, dtype=np.int64)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.astype(np.float32) + 0.25, LABELS, "images.*uint8.*float32"),
        (IMAGES[0], LABELS, r"\(3, 4, 4\)"),
        (IMAGES, LABELS.astype(np.int32), "labels.*int32"),
        (IMAGES, LABELS[:1], "2 images.* 1 label"),
        (IMAGES, np.array([0, 7]), r"labels\[1\].*7"),
        (IMAGES.tolist(), LABELS, "images.*list"),
        (None, LABELS, "images.*NoneType"),
        (IMAGES, [0, 0], "labels.*list"),
        (IMAGES, LABELS - 1, r"labels\[0\].*-1"),
    ],
)
def test_arrays_that_are_no_pictures_and_labels(images: Any, labels: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ArrayDataset("mine", images, labels, ("a",))
