"""Two objects have one digest when they are the same to the last bit, and only then."""

from __future__ import annotations

import pickle
from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.drawing import OBJECTS
from disteval.conformance.fingerprint import digest
from disteval.conformance.objects import ARRAYS, SPECIAL
from hypothesis import given


@given(OBJECTS)
def test_a_faithful_copy_has_the_same_digest(obj: Any) -> None:
    copy = pickle.loads(pickle.dumps(obj))
    # A view comes back as an array of its own, once; from then on nothing changes.
    assert digest(pickle.loads(pickle.dumps(copy))) == digest(copy)


def test_no_two_kinds_have_the_same_digest() -> None:
    array = np.arange(6.0).reshape(2, 3)
    shared = [1]
    kinds = [
        *SPECIAL,
        *ARRAYS,
        1, 1.0, (1.0,), [1], [1.0], "1", b"1", {1: 1}, [shared, shared], [[1], [1]],
        array, np.asfortranarray(array), array.astype(">f8"), array.reshape(3, 2),
        array.tolist(), np.array(array, dtype=object), np.float64(1.0), -np.float64(0.0),
    ]  # fmt: skip
    for a, b in combinations(range(len(kinds)), 2):
        assert digest(kinds[a]) != digest(kinds[b]), (kinds[a], kinds[b])
