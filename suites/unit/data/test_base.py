"""A data set is refused when its arrays can't be pictures and their labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.data import ArrayDataset

IMAGES, LABELS = np.zeros((2, 3, 4, 4), dtype=np.uint8), np.zeros(2, dtype=np.int64)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.astype(np.float32), LABELS, r"images must be a uint8 array .* not float32"),
        (IMAGES[0], LABELS, r"of shape \(N, C, H, W\), not uint8 of shape \(3, 4, 4\)"),
        (IMAGES, LABELS.astype(np.int32), r"labels must be an int64 array .* not int32"),
        (IMAGES, LABELS[:1], r"of shape \(2,\), not int64 of shape \(1,\)"),
    ],
)
def test_arrays_that_are_no_pictures_and_labels(images: Any, labels: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ArrayDataset("mine", images, labels, ("a",))
