"""Exact match of texts and of arrays, against Python's own equality."""

import math
from typing import Any

import numpy as np
from disteval.metrics import ExactMatch
from hypothesis import given
from hypothesis import strategies as st

TOKENS = st.lists(st.integers(0, 1), min_size=2, max_size=2)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12))
def test_it_counts_samples_that_are_equal(pairs: Any) -> None:
    predicted, true = (np.array(each) for each in zip(*pairs, strict=True))
    matches = sum(one == other for one, other in pairs)
    expected = {"exact_match": matches / len(pairs), "matches": matches, "size": len(pairs)}
    match = ExactMatch(dist_backend="non_dist")
    assert match(predicted, true) == expected
    texts = [["".join(map(str, row)) for row in each.tolist()] for each in (predicted, true)]
    assert match(*texts) == match(*map(np.array, texts)) == expected


def test_what_a_mask_leaves_out_may_differ() -> None:
    match = ExactMatch(dist_backend="non_dist")
    found = match([[1, 2], [1, 2]], [[1, 3], [1, 3]], [[1, 0], [1, 1]])
    assert found["matches"] == 1
    assert match([[1.0, math.nan]], [[1.0, math.nan]], [[1, 0]])["matches"] == 1
    assert match(["a", "B"], ("a", "b")) == {"exact_match": 0.5, "matches": 1, "size": 2}
