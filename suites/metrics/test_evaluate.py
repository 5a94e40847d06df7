"""Weights, groups and intervals of `evaluate`, which gives them fields of the batch and ids."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from disteval import HarnessError, RankError, evaluate
from disteval.metrics import Bootstrap, Grouped, Mean, Perplexity, Regression, Weighted

from suites.metrics.cases import alone, assert_same

SIZE = 50
random = np.random.default_rng(0)
DATA = {
    "x": random.normal(size=SIZE),
    "label": random.normal(size=SIZE),
    "weights": random.random(SIZE),
    "groups": random.integers(0, 3, SIZE),
}


def all_three() -> Grouped:
    return Grouped(Bootstrap(Weighted(Regression()), resamples=40))


def predict(batch: Any) -> Any:
    return batch["x"]


def test_an_update_may_give_them_too() -> None:
    def update(outputs: Any, batch: Any) -> Any:
        return {"values": outputs, "groups": ["even" if x > 0 else "odd" for x in batch["x"]]}

    metrics = {"mean": Grouped(Mean())}
    found = evaluate(predict, DATA, metrics, "non_dist", 7, update=update).metrics["mean"]
    assert found["sizes"] == {"even": (DATA["x"] > 0).sum(), "odd": (DATA["x"] <= 0).sum()}


def test_a_mask_and_numbers_of_bytes_reach_a_metric_that_needs_no_labels() -> None:
    named = {"mask": random.random((SIZE, 3)) < 0.7, "byte_counts": random.integers(1, 9, SIZE)}
    data = {"x": -random.random((SIZE, 3)), **named}
    found = evaluate(predict, data, {"p": Perplexity()}, "non_dist", 7).metrics["p"]
    assert_same(found, alone(Perplexity(), (data["x"],), named))


def test_a_batch_without_weights_is_named() -> None:
    data = {"x": DATA["x"], "label": DATA["label"]}
    with pytest.raises(RankError, match=r"'w'.* weights"):
        evaluate(predict, data, {"w": all_three()}, "non_dist", 7)


def test_a_metric_that_was_evaluated_takes_batches_of_its_own_again() -> None:
    metric = Bootstrap(Mean(), resamples=5)
    evaluate(predict, DATA, {"mean": metric}, "non_dist", 7)
    assert metric([1.0, 2.0, 1.0], ids=[0, 1, 0])["mean"]["value"] == 1.5
    metric.add([1.0, 2.0, 1.0], ids=[0, 1, 0])
    assert metric.compute(size=2)["mean"]["value"] == 1.5


@pytest.mark.parametrize(
    "evaluation", [{}, {"predict": lambda batch: None}, {"update": "no function"}, {"limit": -1}]
)
def test_repeated_ids_are_never_counted_twice_after_an_evaluation(evaluation: Any) -> None:
    """A metric keeps only sums while it is evaluated, even if that ends with an error."""
    metric = Weighted(Mean())
    with suppress(HarnessError):
        evaluate(**{"predict": predict, "samples": DATA, "metrics": {"mean": metric}, **evaluation})
    metric.add([1.0, 2.0, 1.0], weights=[1, 1, 1], ids=[0, 1, 0])
    assert metric.compute() == {"mean": 1.5}
    metric.add([3.0], weights=[1], ids=[1])
    with pytest.raises(HarnessError):
        metric.compute()
