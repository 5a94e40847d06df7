"""The same batch gives the same answer as a torch, JAX or TensorFlow array as it does in NumPy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import RankError, UsageError, evaluate
from disteval.metrics import Accuracy, Mean
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.test_accuracy import batches
from suites.properties.cases import array

pytestmark = needs("torch", "jax", "tensorflow")  # one process has them all

DTYPES = ["float32", "float64", "float16", "bfloat16", "int32"]
CASTS: dict[str, Callable[[Any, str], Any]] = {
    "torch": lambda values, dtype: values.to(getattr(framework("torch"), dtype)),
    "jax": lambda values, dtype: values.astype(dtype),
    "tensorflow": lambda values, dtype: framework("tensorflow").cast(values, dtype),
}


@pytest.fixture(params=CASTS)
def converters(request: pytest.FixtureRequest) -> Any:
    return partial(array, request.param), CASTS[request.param]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_every_framework_gives_the_same_answer(converters: Any) -> None:
    to_array, cast = converters

    @given(batches(min_size=1), st.sampled_from(DTYPES), st.sampled_from([None, 0.1, 0.0]))
    @settings(max_examples=20)
    def check(batch: tuple[np.ndarray, np.ndarray], dtype: str, thr: float | None) -> None:
        scores, labels = batch
        if dtype == "int32":
            scores = np.nan_to_num(scores, nan=0, posinf=9, neginf=-9).astype(np.int32)
        accuracy = Accuracy((1, scores.shape[1]) if scores.shape[1] > 1 else 1, thr, counts=True)
        given_scores = cast(to_array(scores), dtype)  # float64 is float32 in JAX by default
        # What the framework holds, in NumPy's nearest precision, is what has to be judged.
        wide = np.asarray(cast(given_scores, "float32")) if dtype == "bfloat16" else given_scores
        expected = accuracy(np.asarray(wide), labels)
        assert accuracy(given_scores, labels) == expected
        assert accuracy(np.asarray(wide), to_array(labels[:, None])) == expected

    check()


def test_labels_and_empty_batches(converters: Any) -> None:
    to_array, _ = converters
    accuracy = Accuracy()
    accuracy.add(to_array(np.zeros((0, 3), np.float32)), to_array(np.zeros(0, np.int32)))
    accuracy.add(to_array(np.array([1, 2, 3])), to_array(np.array([1, 0, 3])))
    assert accuracy.compute() == {"top1": 2 / 3}


def test_errors_are_the_same(converters: Any) -> None:
    to_array, _ = converters
    accuracy = Accuracy(4)
    with pytest.raises(UsageError, match=r"top-4.*\(2, 3\)"):
        accuracy.add(to_array(np.zeros((2, 3), np.float32)), to_array(np.zeros(2, np.int32)))
    with pytest.raises(UsageError, match=r"row 1 .*9"):
        Accuracy().add(to_array(np.zeros((2, 3), np.float32)), to_array(np.array([0, 9])))
    with pytest.raises(UsageError, match="complex64"):
        Accuracy().add(to_array(np.zeros((2, 3), np.complex64)), [0, 1])


def test_nan_on_a_device_is_refused_with_its_own_sample_and_how_many_rows(converters: Any) -> None:
    to_array, cast = converters
    scores = np.zeros((40, 3), np.float32)
    scores[13, 1] = np.nan
    labels = np.zeros(40, np.int64)
    for dtype in ("float32", "bfloat16"):
        accuracy = Accuracy(dist_backend="non_dist")
        with pytest.raises((UsageError, RankError), match=r"1 of 8.*sample 13"):
            for at in range(0, 40, 8):
                some = slice(at, at + 8)
                accuracy.add(
                    cast(to_array(scores[some]), dtype), labels[some], ids=range(at, at + 8)
                )
            accuracy.compute(40)
    samples = [{"x": row, "label": 0} for row in scores]
    with pytest.raises(RankError, match="sample 13"):
        evaluate(lambda b: to_array(b["x"]), samples, {"a": Accuracy()}, "non_dist", 8)


def test_ids_may_be_of_any_framework(converters: Any) -> None:
    to_array, cast = converters
    for dtype in ("int32", "uint8"):
        mean = Mean(dist_backend="non_dist")
        for ids in ([2, 0], [1, 2]):
            mean.add(np.array(ids), ids=cast(to_array(np.array(ids)), dtype))
        assert mean.compute(3) == {"mean": 1.0}
    with pytest.raises(UsageError, match=r"ids.*float32"):
        mean.add(np.array([3.0]), ids=cast(to_array(np.array([3.0])), "float32"))
