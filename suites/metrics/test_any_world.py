"""Each metric has one result, to the last bit, however its samples are dealt or repeated."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest
from disteval import ShardPlan, evaluate
from disteval.metrics import (
    Bootstrap,
    ConfusionMatrix,
    Grouped,
    Mean,
    MetricGroup,
    SampleRows,
    Weighted,
)
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values
from suites.metrics.cases import (
    CASES,
    SIZE,
    SUMS,
    Case,
    Entries,
    alone,
    assert_same,
    losses,
    random,
    with_ids,
)

LENGTHS = np.array([2, 0, 3, 1, 5])
ROWS = np.split(losses[:11], np.cumsum(LENGTHS)[:-1])  # of five samples, of which one has none
GROUPS = np.array(["a", "b", "c"])[random.integers(0, 3, SIZE)]
WEIGHTS = random.integers(1, 9, SIZE) / 4


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, list[list[list[int]]]]:
    """Draw a size, and batches for each rank that together have every sample once or more."""
    size, world = draw(st.integers(8, SIZE)), draw(st.integers(1, 4))
    ids = [*range(size), *draw(st.lists(st.integers(0, size - 1), max_size=20))]
    shards: list[list[int]] = [[] for _ in range(world)]
    for each in draw(st.permutations(ids)):
        shards[draw(st.integers(0, world - 1))].append(each)
    batch = draw(st.integers(1, 6))
    return size, [[s[i : i + batch] for i in range(0, len(s), batch)] for s in shards]


@pytest.mark.parametrize("name", CASES)
def test_with_ids_any_way_of_dealing_gives_the_result_of_one_process(name: str) -> None:
    case = CASES[name]

    @given(dealt(), st.booleans())
    @settings(max_examples=15, deadline=None)
    def check(drawn: tuple[int, Any], proved: bool) -> None:
        size, shards = drawn
        expected = alone(case.make(), case.args, case.named, slice(size))
        for found in with_ids(case, shards, size if proved else None):
            assert_same(found, expected)

    check()


def every_rank_reads_everything(size: int, world: int, rank: int) -> list[Any]:
    return [range(size)]


def padded_and_shuffled(size: int, world: int, rank: int) -> list[Any]:
    order = np.random.default_rng(1).permutation(size)
    return [order[ShardPlan(size, world, rank, pad=True).indices]]


def buckets_of_length(size: int, world: int, rank: int) -> list[Any]:
    """Deal batches of samples of similar length, and fill the last ones up with earlier samples."""
    order = sorted(range(size), key=lambda i: i % 5)
    batches = [(order + order)[start : start + 4] for start in range(0, size, 4)]
    return (batches * world)[rank : -(-len(batches) // world) * world : world]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "sampler", [every_rank_reads_everything, padded_and_shuffled, buckets_of_length]
)
def test_samplers_that_repeat_samples_change_nothing(sampler: Any, name: str) -> None:
    case = CASES[name]
    expected = alone(case.make(), case.args, case.named, slice(13))
    for found in with_ids(case, [sampler(13, 3, rank) for rank in range(3)], 13):
        assert_same(found, expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["strided", "contiguous"])
def test_without_ids_padded_shards_give_the_result_of_one_process(name: str, mode: Any) -> None:
    case = CASES[name]
    expected = alone(case.make(), case.args, case.named)
    for world in (2, 3):

        def rank(backend: ThreadsDist, world: int = world) -> Any:
            metric = case.make()
            metric.dist_backend = backend
            metric.dist_collect_mode = {"strided": "unzip", "contiguous": "cat"}[mode]
            plan = ShardPlan(SIZE, world, backend.rank, mode, pad=True)
            for some in np.array_split(plan.indices, 4):
                named = {name: array[some] for name, array in case.named.items()}
                metric.add(*(array[some] for array in case.args), **named)
            return metric.compute(SIZE)

        for found in values(run_ranks(world, rank)):
            assert_same(found, expected)


def wrapped() -> dict[str, Case]:
    """Return the cases, and each that follows from sums in each wrapper."""
    found = dict(CASES)
    for name, (make, args, named) in SUMS.items():
        found[f"{name} by group"] = Case(
            lambda make=make: Grouped(make()), args, named | {"groups": GROUPS}
        )
        found[f"{name} with intervals"] = Case(
            lambda make=make: Bootstrap(make(), resamples=8), args, named
        )
        found[f"{name} by weight"] = Case(
            lambda make=make: Weighted(make()), args, named | {"weights": WEIGHTS}
        )
    return found


WRAPPED = wrapped()


@pytest.mark.parametrize("schedule", ["static", "leases"])
@pytest.mark.parametrize("name", WRAPPED)
def test_an_evaluation_has_the_bits_of_one_process(name: str, schedule: Any) -> None:
    make, args, named = WRAPPED[name]
    inner = metric = make()
    while isinstance(inner, Grouped | Bootstrap | Weighted):
        inner = inner.metric
    samples = dict(zip(signature(inner.add).parameters, args, strict=False)) | named
    more = {"ids": np.arange(SIZE)} if isinstance(metric, Bootstrap) else {}
    expected = alone(metric, args, named | more)
    for world, batch_size in ((1, 7), (2, 40), (3, 4)):

        def rank(backend: ThreadsDist, batch_size: int = batch_size) -> Any:
            return evaluate(
                lambda batch: next(iter(batch.values())),
                samples,
                {"metric": make()},
                backend,
                batch_size,
                update=lambda _, batch: batch,
                schedule=schedule,
            ).metrics["metric"]

        for found in values(run_ranks(world, rank)):
            assert_same(found, expected)


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=4))
def test_a_sample_may_have_several_rows_or_none(shards: list[list[int]]) -> None:
    shards[0] = [4, 3, 2, 1, 0, *shards[0]]

    def rank(backend: ThreadsDist) -> Any:
        group = MetricGroup({"mean": Mean(), "rows": Entries()}, backend)
        for at in range(0, len(shards[backend.rank]), 3):
            ids = np.array(shards[backend.rank][at : at + 3])
            group.add(np.concatenate([ROWS[i] for i in ids]), ids=SampleRows(ids, LENGTHS[ids]))
        return group.compute(size=5)

    mean = alone(Mean(), (losses[:11],), {})
    for found in values(run_ranks(len(shards), rank)):
        assert found == {"mean": mean, "rows": losses[:11].tolist()}


def test_every_sample_may_have_as_many_rows() -> None:
    pictures = np.arange(24).reshape(3, 8) % 3

    def rank(backend: ThreadsDist) -> Any:
        matrix = ConfusionMatrix(3, dist_backend=backend)
        for i in (backend.rank, 2):
            matrix.add(pictures[i], pictures[i], ids=SampleRows([i], 8))
        return matrix.compute(size=3)["matrix"].tolist()

    assert values(run_ranks(2, rank)) == [np.diag([8, 8, 8]).tolist()] * 2


CLASSES = np.arange(10_000)


class ByColumns(ConfusionMatrix):
    """A confusion matrix whose sums lie column by column in memory."""

    def sums_of(self, column: Any) -> Any:
        return np.asfortranarray(super().sums_of(column))


@pytest.mark.parametrize("kind", [ConfusionMatrix, ByColumns])
def test_large_sums_are_added_whether_few_or_most_of_them_are_0(kind: Any) -> None:
    pairs = np.concatenate([CLASSES[:40], CLASSES, CLASSES[-30:]])  # a lease has 50 samples
    predicted, labels = pairs // 100, pairs % 100

    def rank(backend: ThreadsDist) -> Any:
        metrics = {"m": kind(100)}
        found = evaluate(
            lambda x: x, (predicted, labels), metrics, backend, 50, schedule="leases"
        ).metrics
        return found["m"]["matrix"]

    expected = alone(ConfusionMatrix(100), (predicted, labels), {})["matrix"]
    for found in values(run_ranks(2, rank)):
        assert (found == expected).all()
