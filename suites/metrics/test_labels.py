"""Labels are whole numbers that int64 holds; what it does not hold is never taken for a label."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import Accuracy
from disteval.metrics.labels import class_indices

INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("wrong", [np.uint64(2**64 - 1), np.float64(1e300), np.float32(-np.inf)])
def test_a_prediction_that_int64_does_not_hold_is_never_right(wrong: Any) -> None:
    accuracy = Accuracy()
    # -1 is what it would be wrapped round to.
    for label in (np.array([-1]), np.array([wrong])):
        with pytest.raises(UsageError, match=r"(predictions|labels) must be whole numbers, but"):
            accuracy.add(np.array([wrong]), label)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong", [np.uint64(2**64 - 1), np.uint64(2**63), 1e19, 0.5, np.nan])
def test_a_label_that_is_none_is_named_as_it_was_given(wrong: Any) -> None:
    labels = np.array([0, wrong], dtype=np.asarray(wrong).dtype)
    value = re.escape(str(labels[1]))
    with pytest.raises(UsageError, match=f"must be whole numbers, but row 1 has {value};"):
        class_indices(labels)
    with pytest.raises(UsageError, match=f"whole numbers from 0 to 2, but row 1 has {value}$"):
        Accuracy().add(np.zeros((2, 3)), labels)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.uint64, np.float16, np.float64])
def test_labels_of_any_dtype_keep_their_values(dtype: Any) -> None:
    found = class_indices(np.array([[0], [1]], dtype=dtype))
    assert found.dtype == np.int64
    assert found.tolist() == [0, 1]


def test_all_of_int64_is_kept() -> None:
    assert class_indices([INT64.min, -1, INT64.max]).tolist() == [INT64.min, -1, INT64.max]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_label_just_outside_of_the_classes_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"from 0 to 2, but row 1 has {wrong}$"):
        class_indices([2, wrong, 0], 3)
    assert class_indices([2, 0], 3).tolist() == [2, 0]
