"""The mean of a loss is one float: whatever the world, the batches, their order and the padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from disteval import ShardPlan, UsageError
from disteval.metrics import CrossEntropy, Mean
from disteval.metrics.exact import exact_sum
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values
from suites.metrics.test_exact import finite, mean_of, same, special

LOGITS = [-math.inf, -1e308, -700.0, -1.5, 0.0, 0.1, 1.0, 1e-310, 700.0, 1e308, math.inf, math.nan]
MODES: Any = {"strided": "unzip", "contiguous": "cat"}


@given(
    st.lists(finite | special, min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from(list(MODES)),
    st.integers(1, 6),
    st.data(),
)
def test_the_mean_is_one_float_in_any_world(
    samples: list[float], world: int, mode: Any, batch: int, data: st.DataObject
) -> None:
    array = np.array(data.draw(st.permutations(samples)))

    def rank(backend: ThreadsDist) -> float:
        metric = Mean(None, MODES[mode], backend)
        indices = ShardPlan(len(array), world, backend.rank, mode, pad=True).indices
        for at in range(0, len(indices), batch):
            metric.add(array[indices[at : at + batch]])
        found: float = metric.compute(size=len(array))["mean"]
        return found

    expected = mean_of(samples)
    assert all(same(found, expected) for found in values(run_ranks(world, rank)))


@st.composite
def logits(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    size, classes = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    score = st.floats(-50, 50) | st.sampled_from(LOGITS)
    rows = draw(
        st.lists(st.lists(score, min_size=classes, max_size=classes), min_size=size, max_size=size)
    )
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=size, max_size=size))
    return np.array(rows), np.array(labels)


@given(logits(), st.integers(1, 5), st.sampled_from(list(MODES)), st.integers(1, 4))
def test_cross_entropy_is_one_float_in_any_world(
    drawn: tuple[np.ndarray, np.ndarray], world: int, mode: Any, batch: int
) -> None:
    scores, labels = drawn

    def rank(backend: ThreadsDist) -> float:
        metric = CrossEntropy(None, MODES[mode], backend)
        indices = ShardPlan(len(labels), world, backend.rank, mode, pad=True).indices
        for at in range(0, len(indices), batch):
            some = indices[at : at + batch]
            metric.add(scores[some], labels[some])
        found: float = metric.compute(size=len(labels))["cross_entropy"]
        return found

    alone = CrossEntropy()(scores, labels)["cross_entropy"]
    assert all(same(found, alone) for found in values(run_ranks(world, rank)))


@pytest.mark.parametrize("classes", [1, 2, 7, 129, 1000])
def test_a_sample_has_one_loss_in_any_batch_and_memory_layout(classes: int) -> None:
    random = np.random.default_rng(0)
    scores = random.normal(0, 5, (70, classes)).astype(np.float32)
    labels = random.integers(0, classes, 70)
    alone = [CrossEntropy()(scores[[i]], labels[[i]])["cross_entropy"] for i in range(70)]
    for form in (scores, np.asfortranarray(scores), np.repeat(scores, 2, axis=1)[:, ::2]):
        metric = CrossEntropy()
        metric.add(form, labels)
        # Not the mean of them, which would round a difference away.
        assert metric._results.sums(70, metric).tolist() == exact_sum(np.array(alone)).tolist()


@given(logits())
def test_cross_entropy_agrees_with_its_formula(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = drawn
    scores = np.clip(np.nan_to_num(scores), -300, 300)
    losses = [
        math.log(math.fsum(math.exp(score) for score in row)) - row[label]
        for row, label in zip(scores.tolist(), labels, strict=True)
    ]
    found = CrossEntropy()(scores, labels)["cross_entropy"]
    assert found == pytest.approx(mean_of(losses), rel=1e-13, abs=1e-13 * 300)


@needs("torch")
def test_cross_entropy_agrees_with_torch() -> None:
    torch = framework("torch")

    @given(logits(), st.sampled_from(["float64", "float32", "bfloat16"]))
    def check(drawn: tuple[np.ndarray, np.ndarray], dtype: str) -> None:
        scores, labels = torch.tensor(drawn[0]).to(getattr(torch, dtype)), torch.tensor(drawn[1])
        # torch's own mean overflows where the losses' sum does.
        losses = torch.nn.functional.cross_entropy(scores.double(), labels, reduction="none")
        expected = mean_of(losses.tolist())
        found = CrossEntropy()(scores, labels)["cross_entropy"]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-13, nan_ok=True)

    check()


def test_the_form_of_values_does_not_matter() -> None:
    for form in ([1, 2], (1.0, 2.0), np.array([1, 2], dtype=np.float16), np.array([1, 2], "uint8")):
        assert Mean()(form) == {"mean": 1.5}
    assert Mean()(np.array([True, False])) == {"mean": 0.5}
    assert math.isnan(Mean()([1.0, math.nan])["mean"])
    assert CrossEntropy()([[0.0, 0.0]], [[1.0]]) == {"cross_entropy": math.log(2)}


def test_a_mean_near_the_largest_float_does_not_overflow() -> None:
    largest = float(np.finfo(np.float64).max)
    assert Mean()([largest] * 3) == {"mean": largest}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (0.5, r"values must have shape \(N,\), one for each sample, not \(\)"),
        (np.zeros((2, 1)), r"values must have shape \(N,\), one for each sample, not \(2, 1\)"),
        (np.array([2**53 + 1]), "from -2\\*\\*53 to 2\\*\\*53, .* row 0 has 9007199254740993"),
        (np.zeros(2, dtype=complex), "real numbers, not of complex128"),
        (["a"], "real numbers, not of <U1"),
    ],
)
def test_bad_values_are_named_and_add_nothing(bad: Any, message: str) -> None:
    metric = Mean()
    metric.add([1.0])
    with pytest.raises(UsageError, match=message):
        metric.add(bad)
    assert metric.compute(size=1) == {"mean": 1.0}


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros(2), [0, 1], r"logits of shape \(N, C\) with C of 1 or more, not \(2,\)"),
        (np.zeros((2, 0)), [0, 1], r"with C of 1 or more, not \(2, 0\)"),
        (np.zeros((2, 3)), [0], r"shape \(2, 3\) and labels of shape \(1,\) do not have the same"),
        (np.zeros((2, 3)), [0, 3], "labels must be whole numbers from 0 to 2, but row 1 has 3"),
        (np.zeros((2, 3)), [-1, 0], "from 0 to 2, but row 0 has -1"),
        (np.zeros((2, 3)), [0, 0.5], r"from 0 to 2, but row 1 has 0\.5"),
        (np.zeros((2, 3)), [0, math.nan], "from 0 to 2, but row 1 has nan"),
        (np.zeros((1, 3)), np.array([2**64 - 1], "uint64"), "row 0 has 18446744073709551615"),
        (np.zeros((2, 3)), np.zeros((2, 2)), r"labels must have shape \(N,\) or \(N, 1\), not"),
    ],
)
def test_bad_logits_and_labels_are_named_and_add_nothing(
    predictions: Any, labels: Any, message: str
) -> None:
    metric = CrossEntropy()
    metric.add([[0.0, -math.inf]], [0])
    with pytest.raises(UsageError, match=message):
        metric.add(predictions, labels)
    assert metric.compute(size=1) == {"cross_entropy": 0.0}


def test_no_samples_is_an_error() -> None:
    metric = CrossEntropy()
    metric.add(np.zeros((0, 4)), np.zeros(0))
    with pytest.raises(UsageError, match="no samples: add"):
        metric.compute()
