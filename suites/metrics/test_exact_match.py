"""Exact match of texts and of arrays, against Python's own equality."""

import math
from typing import Any

import numpy as np
import pytest
from disteval.metrics import ExactMatch
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs

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


@needs("torch", "torchmetrics")
def test_it_agrees_with_torchmetrics() -> None:
    torch, torchmetrics = framework("torch"), framework("torchmetrics")
    predicted, true = torch.randint(0, 2, (2, 50, 3), generator=torch.manual_seed(0))
    oracle = torchmetrics.classification.MulticlassExactMatch(2)(predicted, true)
    found = ExactMatch(dist_backend="non_dist")(predicted, true)["exact_match"]
    assert found == pytest.approx(oracle.item())


def test_what_a_mask_leaves_out_may_differ() -> None:
    match = ExactMatch(dist_backend="non_dist")
    found = match([[1, 2], [1, 2]], [[1, 3], [1, 3]], [[1, 0], [1, 1]])
    assert found["matches"] == 1
    assert match([[1.0, math.nan]], [[1.0, math.nan]], [[1, 0]])["matches"] == 1
    assert match(["a", "B"], ("a", "b")) == {"exact_match": 0.5, "matches": 1, "size": 2}
