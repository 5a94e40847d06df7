"""Results by group against the metric on each group alone, in worlds of several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import CoverageError, UsageError
from disteval.metrics import (
    AUROC,
    Accuracy,
    Bootstrap,
    Grouped,
    Mean,
    MetricGroup,
    Perplexity,
    SampleRows,
    Weighted,
)
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import Counting, run_ranks, values
from suites.metrics.cases import CASES, SIZE, alone, assert_same
from suites.metrics.worlds import everywhere

LANGUAGES = np.random.default_rng(4).choice(["de", "en", "fr"], SIZE)


@pytest.mark.parametrize("case", CASES)
def test_each_group_is_as_if_alone_in_any_world(case: str) -> None:
    make, args, named = CASES[case]
    expected = {
        "overall": alone(make(), args, named),
        "groups": {
            str(key): alone(
                make(),
                [array[key == LANGUAGES] for array in args],
                {name: array[key == LANGUAGES] for name, array in named.items()},
            )
            for key in ("de", "en", "fr")
        },
        "sizes": {key: int((key == LANGUAGES).sum()) for key in ("de", "en", "fr")},
    }
    for found in everywhere(lambda: Grouped(make()), *args, **named, groups=LANGUAGES):
        assert_same(found, expected)


def test_wrappers_compose() -> None:
    random = np.random.default_rng(5)
    scores, labels = random.normal(size=(SIZE, 4)), random.integers(0, 4, SIZE)
    weights = random.random(SIZE)
    ids = np.arange(SIZE)

    def make() -> Grouped:
        return Grouped(Bootstrap(Weighted(Accuracy()), resamples=50))

    results = everywhere(make, scores, labels, weights=weights, groups=LANGUAGES)
    for key in ("de", "en", "fr"):
        own = key == LANGUAGES
        expected = alone(
            Bootstrap(Weighted(Accuracy()), resamples=50),
            (scores[own], labels[own]),
            {"weights": weights[own], "ids": ids[own]},
        )
        for found in results:
            assert_same(found["groups"][key], expected)
    whole = Bootstrap(Weighted(Accuracy()), resamples=50)
    expected = alone(whole, (scores, labels), {"weights": weights, "ids": ids})
    assert_same(results[0]["overall"], expected)


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


def test_size_drops_padding_and_its_group() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"))
    mean.add([1.0, 3.0, 9.0], groups=["a", "a", "padding"])
    assert mean.compute(size=2) == {
        "overall": {"mean": 2.0},
        "groups": {"a": {"mean": 2.0}},
        "sizes": {"a": 2},
    }


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
    with pytest.raises(
        CoverageError, match="sample 0 was added with one value on rank 0 and another"
    ):
        mean.compute(size=1)


def test_all_metrics_share_one_collective() -> None:
    def rank(backend: ThreadsDist) -> tuple[Any, int]:
        counting = Counting(backend)
        metrics = {"plain": Mean(), "grouped": Grouped(Mean()), "weighted": Weighted(Mean())}
        group = MetricGroup(metrics, counting)
        for name, named in (
            ("plain", {}),
            ("grouped", {"groups": ["a"]}),
            ("weighted", {"weights": [2.0]}),
        ):
            metrics[name].add([float(backend.rank)], ids=[backend.rank], **named)
        return group.compute(size=2), len(counting.sent)

    for found, collectives in values(run_ranks(2, rank)):
        assert collectives == 1
        assert found["plain"] == found["grouped"]["overall"] == found["weighted"] == {"mean": 0.5}


def test_the_number_of_groups_is_bounded() -> None:
    mean = Grouped(Mean(dist_backend="non_dist"), max_groups=3)
    mean.add([1.0] * 2, groups=[0, 1])
    with pytest.raises(UsageError, match="this rank has 4 groups, and max_groups is 3; group by a"):
        mean.add([1.0] * 2, groups=[2, 3])
    assert mean.compute()["sizes"] == {0: 1, 1: 1}
    mean.reset()
    mean.add([1.0] * 3, groups=[4, 5, 6])

    def rank(backend: ThreadsDist) -> Any:
        mean = Grouped(Mean(dist_backend=backend), max_groups=3)
        mean.add([1.0] * 2, groups=[backend.rank, backend.rank + 2])
        return mean.compute()

    for outcome in run_ranks(2, rank):
        assert "all ranks together have 4 groups, and max_groups is 3" in str(outcome)


class Late(Mean):
    """A mean of values that a device is still computing."""

    brought = 0

    def add(self, values: Any, *, ids: Any = None) -> None:
        def bring() -> Any:
            Late.brought += 1
            return np.asarray(values)

        self._append_later(len(values), bring, ids)


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


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([1.5, 2.0], r"a group must be a text or a whole number, not 1.5; join several keys"),
        ([None, 1], "a group must be a text or a whole number, not None"),
        ([("a", 1), ("b", 2)], r"a group must be a text or a whole number, not \('a', 1\)"),
        ("ab", "groups must be a list or an array with one group for each sample, not 'ab'"),
        ({"a": 1}, "groups must be a list or an array with one group for each sample"),
        ([b"\xff", b"a"], r"a group must be a text, and b'\\xff' is not UTF-8"),
        (["a"], "groups have 1 values, but the batch has 2 samples; give one for each"),
    ],
)
def test_other_groups_are_refused(groups: Any, message: str) -> None:
    mean = Grouped(Mean(dist_backend="non_dist"))
    with pytest.raises(UsageError, match=message):
        mean.add([1.0, 2.0], groups=groups)
    assert len(mean._results) == 0


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
    with pytest.raises(UsageError, match="this rank has 3 groups, and max_groups is 2"):
        mean.add([3.0], groups=["fr"])
    assert mean.compute()["sizes"] == {"de": 1, "en": 1}


def test_a_group_without_a_result_is_named() -> None:
    perplexity = Grouped(Perplexity(dist_backend="non_dist"))
    perplexity.add([[-1.0], [-1.0]], mask=[[1], [0]], groups=["de", "en"])
    with pytest.raises(UsageError, match="group 'en': no token counts; look at the mask"):
        perplexity.compute()


def test_it_takes_metrics_that_follow_from_sums() -> None:
    for wrong in (AUROC(), Accuracy, None):
        with pytest.raises(UsageError, match="Grouped takes a metric that follows from sums"):
            Grouped(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Grouped can't be computed of Grouped; the order is"):
        Grouped(Grouped(Mean()))
    with pytest.raises(UsageError, match="max_groups must be a whole number from 1 up"):
        Grouped(Mean(), max_groups=0)
