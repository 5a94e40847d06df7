"""The cross-entropy against its formula and torch, and the same in any batch."""

import math

import numpy as np
import pytest
from disteval.metrics import CrossEntropy, Grouped, Mean
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.test_exact import mean_of

LOGITS = [-math.inf, -1e308, -700.0, -1.5, 0.0, 0.1, 1.0, 1e-310, 700.0, 1e308, math.inf]


@st.composite
def logits(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    size, classes = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    score = st.floats(-50, 50) | st.sampled_from(LOGITS)
    rows = draw(
        st.lists(st.lists(score, min_size=classes, max_size=classes), min_size=size, max_size=size)
    )
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=size, max_size=size))
    return np.array(rows), np.array(labels)


@pytest.mark.parametrize("classes", [1, 2, 7, 129, 1000])
def test_a_sample_has_one_loss_in_any_batch_and_memory_layout(classes: int) -> None:
    random = np.random.default_rng(0)
    scores = random.normal(0, 5, (70, classes)).astype(np.float32)
    labels = random.integers(0, classes, 70)
    alone = [CrossEntropy()(scores[[i]], labels[[i]])["cross_entropy"] for i in range(70)]
    for form in (scores, np.asfortranarray(scores), np.repeat(scores, 2, axis=1)[:, ::2]):
        # By group, for the mean of all would round a difference away.
        metric = Grouped(CrossEntropy())
        found = metric(form, labels, groups=range(70))["groups"].values()
        assert [each["cross_entropy"] for each in found] == alone


@given(logits())
def test_cross_entropy_agrees_with_its_formula(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = drawn
    scores = np.clip(np.nan_to_num(scores), -300, 300)
    losses = [
        math.log(math.fsum(math.exp(score) for score in row)) - row[label]
        for row, label in zip(scores.tolist(), labels, strict=True)
    ]
    found = CrossEntropy(refuse_probabilities=False)(scores, labels)["cross_entropy"]
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
        found = CrossEntropy(refuse_probabilities=False)(scores, labels)["cross_entropy"]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-13, nan_ok=True)

    check()


def test_the_form_of_values_does_not_matter() -> None:
    for form in ([1, 2], (1.0, 2.0), np.array([1, 2], dtype=np.float16), np.array([1, 2], "uint8")):
        assert Mean()(form) == {"mean": 1.5}
    assert Mean()(np.array([True, False])) == {"mean": 0.5}
    assert math.isnan(Mean()([math.inf, -math.inf])["mean"])
    assert CrossEntropy()([[0.0, 0.0]], [[1.0]]) == {"cross_entropy": math.log(2)}


def test_a_mean_near_the_largest_float_does_not_overflow() -> None:
    largest = float(np.finfo(np.float64).max)
    assert Mean()([largest] * 3) == {"mean": largest}
