"""Average precision and AUROC against their definitions, pair by pair, and scikit-learn."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import AUROC, AveragePrecision
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import needs
from suites.helpers.thread_world import assert_each_raised, run_ranks

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


def test_the_form_of_scores_does_not_matter() -> None:
    for scores in (
        [1, 0], [[1], [0]], np.array([1, 0], "float16"), np.array([[1.0], [0.0]]), [True, False],
    ):  # fmt: skip
        for labels in ([0, 1], np.array([[0.0], [1.0]]), [False, True]):
            assert AUROC()(scores, labels) == {"auroc": 0.0}
            assert AveragePrecision()(scores, labels) == {"average_precision": 0.5}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(("label", "kind"), [(1, "positive"), (0, "negative")])
def test_samples_of_one_class_have_no_result_on_any_rank(name: str, label: int, kind: str) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = METRICS[name](dist_backend=backend)
        metric.add([0.1, 0.2], [label, label])
        return metric.compute()

    assert_each_raised(run_ranks(2, rank), UsageError, f"all 4 samples are {kind}")
