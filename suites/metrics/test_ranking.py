"""Average precision and AUROC against their definitions, pair by pair, and scikit-learn."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from disteval import RankError, ShardPlan, UsageError
from disteval.metrics import AUROC, AveragePrecision
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.helpers.thread_world import run_ranks, values

MODES: Any = {"strided": "unzip", "contiguous": "cat"}
METRICS: Any = {"auroc": AUROC, "average_precision": AveragePrecision}

# Few values, so that ties are common; 0.0 and -0.0 are one.
SCORES = [-math.inf, -1.5, -0.0, 0.0, 5e-324, 0.1, 0.25, 1.0, 1e308, math.inf]
Samples = list[tuple[float, int]]


def of_both_classes(samples: Samples) -> bool:
    return len({label for _, label in samples}) == 2


samples = st.lists(
    st.tuples(st.sampled_from(SCORES) | st.floats(allow_nan=False), st.integers(0, 1)),
    min_size=2,
    max_size=14,
).filter(of_both_classes)


def area(samples: Samples) -> float:
    """Return the chance that a positive is scored above a negative; equal scores count half."""
    positives = [score for score, label in samples if label]
    negatives = [score for score, label in samples if not label]
    won = sum(
        Fraction(1 if p > n else 0) + (Fraction(1, 2) if p == n else 0)
        for p in positives
        for n in negatives
    )
    return float(won / (len(positives) * len(negatives)))


def average_precision(samples: Samples) -> float:
    """Return the mean, over the positives, of the precision among all scored as high or higher."""
    found = Fraction(0)
    positives = [score for score, label in samples if label]
    for threshold in positives:
        taken = [label for score, label in samples if score >= threshold]
        found += Fraction(sum(taken), len(taken))
    return float(found / len(positives))


@given(samples)
def test_they_follow_their_definitions(drawn: Samples) -> None:
    scores, labels = zip(*drawn, strict=True)
    assert AUROC()(scores, labels) == {"auroc": area(drawn)}
    found = AveragePrecision()(scores, labels)
    assert found == {"average_precision": pytest.approx(average_precision(drawn), rel=1e-14)}


@needs("sklearn")
@pytest.mark.parametrize("name", METRICS)
def test_they_agree_with_scikit_learn(name: str) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    theirs = {"auroc": roc_auc_score, "average_precision": average_precision_score}[name]

    @given(samples)
    @settings(max_examples=40)
    def check(drawn: Samples) -> None:
        # It takes no infinities, and subtracts scores.
        scores = np.clip([score for score, _ in drawn], -1e307, 1e307)
        labels = [label for _, label in drawn]
        expected = theirs(labels, scores)
        assert METRICS[name]()(scores, labels) == {name: pytest.approx(expected, rel=1e-12)}

    check()


@pytest.mark.parametrize("name", METRICS)
@given(samples, st.integers(1, 5), st.sampled_from(list(MODES)), st.integers(1, 4), st.data())
def test_they_are_one_float_in_any_world(
    name: str, drawn: Samples, world: int, mode: Any, batch: int, data: st.DataObject
) -> None:
    shuffled = np.array(data.draw(st.permutations(drawn)))

    def rank(backend: ThreadsDist) -> Any:
        metric = METRICS[name](None, MODES[mode], backend)
        indices = ShardPlan(len(shuffled), world, backend.rank, mode, pad=True).indices
        for at in range(0, len(indices), batch):
            some = shuffled[indices[at : at + batch]]
            metric.add(some[:, 0], some[:, 1])
        return metric.compute(size=len(shuffled))

    alone = METRICS[name]()(*zip(*drawn, strict=True))
    assert values(run_ranks(world, rank)) == [alone] * world


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (
            [0.1, 0.2],
            [1, 1],
            "all 4 samples are positive; this metric needs samples of both classes",
        ),
        (
            [0.1, 0.2],
            [0, 0],
            "all 4 samples are negative; this metric needs samples of both classes",
        ),
        ([math.nan, 0.2], [0, 1], "2 of 4 scores are NaN, which can't be ranked"),
        ([], [], "no samples: add"),
    ],
)
def test_what_has_no_result_is_an_error_on_every_rank(
    name: str, scores: list[float], labels: list[int], message: str
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = METRICS[name](dist_backend=backend)
        metric.add(np.array(scores), np.array(labels))
        return metric.compute()

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, RankError)
        assert f"could not compute {METRICS[name].__name__}: UsageError: " in str(outcome)
        assert message in str(outcome)


def test_the_form_of_scores_does_not_matter() -> None:
    for scores in (
        [1, 0], [[1], [0]], np.array([1, 0], "float16"), np.array([[1.0], [0.0]]), [True, False],
    ):  # fmt: skip
        for labels in ([0, 1], np.array([[0.0], [1.0]]), [False, True]):
            assert AUROC()(scores, labels) == {"auroc": 0.0}
            assert AveragePrecision()(scores, labels) == {"average_precision": 0.5}


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((2, 2)), [0, 1], r"predictions must have shape \(N,\), one .* not \(2, 2\)"),
        (np.zeros(2), [0], r"shape \(2,\) and labels of shape \(1,\) do not have the same number"),
        (np.zeros(2), [0, 2], "labels must be whole numbers from 0 to 1, but row 1 has 2"),
        (np.array([0, 2**60]), [0, 1], f"but row 1 has {2**60}"),
    ],
)
def test_bad_batches_are_named_and_add_nothing(predictions: Any, labels: Any, message: str) -> None:
    metric = AUROC()
    metric.add([1.0, 0.0], [1, 0])
    with pytest.raises(UsageError, match=message):
        metric.add(predictions, labels)
    assert metric.compute(size=2) == {"auroc": 1.0}
