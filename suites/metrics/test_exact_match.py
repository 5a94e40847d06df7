"""Exact match of texts and of arrays, against Python's own equality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import ExactMatch
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.worlds import everywhere

TOKENS = st.lists(st.integers(0, 1), min_size=2, max_size=2)


@settings(max_examples=15)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12))
def test_it_counts_samples_that_are_equal_in_any_world(pairs: Any) -> None:
    predicted, true = (np.array(each) for each in zip(*pairs, strict=True))
    matches = sum(one == other for one, other in pairs)
    expected = {"exact_match": matches / len(pairs), "matches": matches, "size": len(pairs)}
    results = everywhere(ExactMatch, predicted, true)
    results += everywhere(
        ExactMatch, predicted.astype(str)[:, 0], true.astype(str)[:, 0], sizes=(1,)
    )
    assert results[:-1] == [expected] * (len(results) - 1)
    assert results[-1]["matches"] == sum(one[0] == other[0] for one, other in pairs)


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
    assert match([[1.0, math.nan]], [[1.0, math.nan]])["matches"] == 0
    assert match(["a", "B"], ("a", "b")) == {"exact_match": 0.5, "matches": 1, "size": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], [1]), "predictions are texts and labels are numbers, with mask None; give texts"),
        ((["a"], ["a"], [1]), "labels are texts, with mask given; give texts for both and no mask"),
        ((["a"], ["a", "b"]), "do not have the same number of samples"),
        (("cat", "cat"), "texts must be a list with one text for each sample, but there is 'cat'"),
        ((["a", None], ["a", None]), "one text for each sample, but there is None"),
        (
            (np.array([["a", "b"]]),) * 2,
            r"one text for each sample, but there is array\(\['a', 'b'\]",
        ),
        ((np.zeros((2, 3)), np.zeros((2, 4))), r"\(2, 3\) and labels of shape \(2, 4\); both must"),
        ((1, 1), r"predictions of shape \(\) and labels of shape \(\); both must have one shape"),
        (([1], [1], [2]), "mask must be truth values, 0 or 1, but one is 2"),
        ((1 + 1j * np.ones(1), [1]), "real numbers, not of complex128"),
    ],
)
def test_bad_arguments_are_named_and_add_nothing(arguments: Any, message: str) -> None:
    metric = ExactMatch(dist_backend="non_dist")
    metric.add([1], [1])
    with pytest.raises(UsageError, match=message):
        metric.add(*arguments)
    assert metric.compute(size=1)["matches"] == 1
