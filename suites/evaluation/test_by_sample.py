"""Seeds of samples, and what is told of numbers that are not drawn by them."""

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import UsageError, evaluate, seeds
from disteval.metrics import Mean

from suites.helpers.needs import framework, needs


def test_seeds_are_numbers_of_their_own_for_each_sample_and_evaluation() -> None:
    many = np.concatenate([seeds(np.arange(10_000), seed) for seed in range(20)])
    assert len({*many.tolist()}) == len(many) and many.min() >= 0 and many.dtype == np.int64
    assert (seeds([7, 3], 1) == many[[10_007, 10_003]]).all()
    # The values are part of results that people publish.
    assert seeds([0, 1]).tolist() == [6017775124710473527, 6467540162864785327]


@pytest.mark.parametrize(("ids", "seed"), [([0.5], 0), ([[1, 2]], 0), ([1], -1), ([1], 0.5)])
def test_other_numbers_are_refused(ids: Any, seed: Any) -> None:
    with pytest.raises(UsageError):
        seeds(ids, seed)


class Forward:
    """A model whose call says nothing about its parameters, like those of torch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, batch: Any, ids: Any) -> Any:
        return ids


def scaled(factor: int, batch: Any, *, ids: Any = None) -> Any:
    return factor * ids


@pytest.mark.parametrize("predict", [Forward(), partial(scaled, 1), lambda batch, ids: ids])
def test_ids_are_the_numbers_of_the_rows(predict: Callable[..., Any]) -> None:
    heard: list[int] = []

    def update(outputs: Any, batch: Any) -> tuple[Any]:
        heard.extend(np.asarray(outputs).tolist())
        return (outputs,)

    found = evaluate(
        predict, np.arange(10), {"mean": Mean()}, "non_dist", 4,
        update=update,
    )  # fmt: skip
    assert heard == [*range(10)]
    assert found.metrics["mean"]["mean"] == 4.5


def drawing(name: str) -> Callable[[], object]:
    if name == "torch":
        return partial(framework("torch").rand, 1)  # which imports it, as what made a model has
    return {"random": random.random, "numpy.random": np.random.random}[name]


@pytest.mark.parametrize(
    "name", ["random", "numpy.random", pytest.param("torch", marks=needs("torch"))]
)
def test_a_global_generator_that_has_moved_is_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    draw = drawing(name)
    with caplog.at_level(logging.WARNING):
        evaluate(lambda batch: (draw(), batch)[1], np.arange(10), {}, "non_dist", 4)
        assert [record for record in caplog.records if f" {name} " in record.getMessage()]
        caplog.clear()
        draw()
        evaluate(lambda batch: batch, np.arange(10), {}, "non_dist", 4)
    assert not caplog.records
