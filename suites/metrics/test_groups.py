"""Results by group against the metric on each group alone."""

from typing import Any

import numpy as np
import pytest
from disteval import CoverageError, UsageError
from disteval.metrics import (
    Accuracy,
    Bootstrap,
    Grouped,
    Mean,
    Perplexity,
    SampleRows,
    Weighted,
)
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks, values
from suites.metrics.cases import SIZE, SUMS, alone, assert_same

LANGUAGES = np.random.default_rng(4).choice(["de", "en", "fr"], SIZE)


@pytest.mark.parametrize("case", SUMS)
def test_each_group_is_as_if_alone(case: str) -> None:
    make, args, named = SUMS[case]
    keys = ("de", "en", "fr")
    expected = {
        "overall": alone(make(), args, named),
        "groups": {key: alone(make(), args, named, key == LANGUAGES) for key in keys},
        "sizes": {key: int((key == LANGUAGES).sum()) for key in keys},
    }
    assert_same(alone(Grouped(make()), args, named | {"groups": LANGUAGES}), expected)


def test_wrappers_compose() -> None:
    random = np.random.default_rng(5)
    scores, labels = random.normal(size=(SIZE, 4)), random.integers(0, 4, SIZE)
    named = {"weights": random.random(SIZE), "ids": np.arange(SIZE)}

    def make() -> Bootstrap:
        return Bootstrap(Weighted(Accuracy()), resamples=50)

    found = alone(Grouped(make()), (scores, labels), {**named, "groups": LANGUAGES})
    for key in ("de", "en", "fr"):
        own = alone(make(), (scores, labels), named, key == LANGUAGES)
        assert_same(found["groups"][key], own)
    assert_same(found["overall"], alone(make(), (scores, labels), named))


def test_ranks_may_have_other_groups_and_none() -> None:
    def rank(backend: ThreadsDist) -> Any:
        mean = Grouped(Mean(dist_backend=backend))
        if backend.rank == 0:
            mean.add([1.0, 3.0], groups=["b", 10])
        elif backend.rank == 1:
            mean.add([5.0, 7.0], groups=[9, "b"])
        return mean.compute()

    found = values(run_ranks(3, rank))
    assert found[0] == found[1] == found[2]
    assert found[0]["groups"] == {9: {"mean": 5.0}, 10: {"mean": 3.0}, "b": {"mean": 4.0}}
    assert list(found[0]["groups"]) == [9, 10, "b"] == list(found[0]["sizes"])
    assert found[0]["overall"] == {"mean": 4.0}


def test_a_sample_with_several_rows_has_one_group() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"))
    mean.add([1.0, 2.0, 6.0], groups=["b", "a"], ids=SampleRows([0, 1], [2, 1]))
    assert mean.compute(size=2)["groups"] == {"a": {"mean": 6.0}, "b": {"mean": 1.5}}
    mean = Grouped(Weighted(Mean(dist_backend="non_dist")))
    rows = SampleRows([0, 1], [2, 1])
    mean.add([1.0, 2.0, 6.0], groups=["b", "b"], weights=[1, 2], ids=rows)
    assert mean.compute(size=2)["overall"] == {"mean": 3.75}


def test_a_sample_in_two_groups_is_two_values() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"))
    mean.add([1.0, 1.0], groups=["a", "b"], ids=[0, 0])
    with pytest.raises(CoverageError, match="sample 0 "):
        mean.compute(size=1)


def test_the_number_of_groups_is_bounded() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"), max_groups=3)
    mean.add([1.0] * 2, groups=[0, 1])
    with pytest.raises(UsageError, match=r"4 groups.* 3"):
        mean.add([1.0] * 2, groups=[2, 3])
    assert mean.compute()["sizes"] == {0: 1, 1: 1}
    mean.reset()
    mean.add([1.0] * 3, groups=[4, 5, 6])

    def rank(backend: ThreadsDist) -> Any:
        mean = Grouped(Mean(dist_backend=backend), max_groups=3)
        mean.add([1.0] * 2, groups=[backend.rank, backend.rank + 2])
        return mean.compute()

    assert_each_raised(run_ranks(2, rank), UsageError, "4 groups")


class Late(Mean):
    """A mean of values that a device is still computing."""

    brought = 0

    def add(self, values: Any, *, ids: Any = None) -> None:
        def bring() -> Any:
            Late.brought += 1
            return np.asarray(values)

        self._append(bring, ids, length=len(values))


def test_rows_stay_on_their_device_until_later_batches_come() -> None:
    late = Grouped(Bootstrap(Weighted(Late(dist_backend="non_dist")), resamples=9))
    plain = Grouped(Bootstrap(Weighted(Mean(dist_backend="non_dist")), resamples=9))
    for at in range(6):
        values = np.array([1.5, 2.5]) + at
        named = {"weights": [1, at], "groups": ["a", "b"], "ids": [2 * at, 2 * at + 1]}
        for metric in (late, plain):
            metric.add(values, **named)
        assert Late.brought == max(0, at - 3)
    assert_same(late.compute(size=12), plain.compute(size=12))
    assert Late.brought == 6


def test_truth_values_and_texts_as_bytes_are_keys_too() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"))
    mean.add([1.0, 2.0], groups=np.array([True, False]))
    mean.add([3.0, 4.0], groups=np.array([b"\xc3\xa4", b"x"], dtype=object))
    assert mean.compute()["sizes"] == {0: 1, 1: 1, "x": 1, "ä": 1}


def test_a_call_counts_its_own_groups_alone() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"), max_groups=2)
    mean.add([1.0, 2.0], groups=["de", "en"])
    for batch in ("fr", "it", "es"):
        assert mean([3.0], groups=[batch])["sizes"] == {batch: 1}
    with pytest.raises(UsageError, match=r"3 groups.* 2"):
        mean.add([3.0], groups=["fr"])
    assert mean.compute()["sizes"] == {"de": 1, "en": 1}


def test_a_group_without_a_result_is_named() -> None:
    perplexity = Grouped(Perplexity(dist_backend="non_dist"))
    perplexity.add([[-1.0], [-1.0]], mask=[[1], [0]], groups=["de", "en"])
    with pytest.raises(UsageError, match="'en'"):
        perplexity.compute()
