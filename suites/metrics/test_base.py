"""A metric over many ranks says what it says over one, or every rank gets the same error."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from disteval import BaseDistBackend, RankError, ShardPlan, UsageError, get_dist_backend
from disteval.metrics.base import BaseMetric
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values

sizes = st.integers(0, 40)
worlds = st.integers(1, 5)
Collect = Literal["unzip", "cat"]
MODES: dict[str, Collect] = {"strided": "unzip", "contiguous": "cat"}


class Samples(BaseMetric):
    """A metric whose result is the list of its samples."""

    def add(self, samples: Any) -> None:
        self._results.extend(int(sample) for sample in samples)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


class Failing(Samples):
    def compute_metric(self, results: list[Any]) -> Any:
        raise ZeroDivisionError("nothing to divide by")


def _computed(
    size: int, world: int, mode: Any, pad: bool, limit: int | None
) -> list[list[int] | BaseException]:
    def rank(backend: ThreadsDist) -> list[int]:
        metric = Samples(dist_collect_mode=MODES[mode], dist_backend=backend)
        metric.add(ShardPlan(size, world, backend.rank, mode, pad).indices)
        result: list[int] = metric.compute(limit)
        return result

    return run_ranks(world, rank)


def test_a_metric_without_its_methods_can_not_be_made() -> None:
    for missing, given_ in (("add", "compute_metric"), ("compute_metric", "add")):
        with pytest.raises(TypeError, match=missing):
            type("Unfinished", (BaseMetric,), {given_: getattr(Samples, given_)})()


@given(sizes, worlds, st.sampled_from(list(MODES)))
def test_ragged_shards_lose_nothing(size: int, world: int, mode: str) -> None:
    assert values(_computed(size, world, mode, False, None)) == [list(range(size))] * world


@given(sizes, worlds, st.sampled_from(list(MODES)))
def test_size_drops_padding_and_keeps_the_right_samples(size: int, world: int, mode: str) -> None:
    assert values(_computed(size, world, mode, True, size)) == [list(range(size))] * world


@given(sizes, worlds, st.sampled_from(list(MODES)), st.integers(1, 10))
def test_a_size_that_was_not_reached_is_an_error_on_every_rank(
    size: int, world: int, mode: str, more: int
) -> None:
    for outcome in _computed(size, world, mode, False, size + more):
        assert isinstance(outcome, UsageError)
        assert f"{more} are missing" in str(outcome)


@given(sizes, st.data())
def test_size_counts_with_world_size_1(size: int, data: st.DataObject) -> None:
    limit = data.draw(st.integers(0, size))
    metric = Samples(dist_backend="non_dist")
    metric.add(range(size))
    assert metric.compute(limit) == list(range(limit))


@pytest.mark.parametrize("size", [-1, 2.5, "3", True])
def test_a_size_that_is_no_number_of_samples_is_an_error(size: Any) -> None:
    metric = Samples()
    metric.add([1, 2, 3])
    with pytest.raises(UsageError, match="size must be a whole number from 0 up"):
        metric.compute(size)


def test_ranks_that_ask_for_different_sizes_are_told() -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = Samples(dist_backend=backend)
        metric.add([backend.rank])
        return metric.compute(backend.rank)

    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, UsageError)
        assert "different sizes: [0, 1, 2], by rank" in str(outcome)


@given(worlds)
def test_a_failure_on_rank_0_is_raised_on_every_rank(world: int) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = Failing(dist_backend=backend)
        metric.add([1])
        return metric.compute()

    for outcome in run_ranks(world, rank):
        assert isinstance(outcome, RankError)
        assert outcome.rank == 0
        assert "could not compute Failing: ZeroDivisionError: nothing to divide by" in str(outcome)


@given(st.integers(2, 5), st.data())
def test_entries_that_cannot_travel_are_an_error_on_every_rank(
    world: int, data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, world - 1))

    def rank(backend: ThreadsDist) -> Any:
        metric = Samples(dist_backend=backend)
        metric._results = [lambda: None] if backend.rank == guilty else [1]
        with pytest.raises(RankError, match=f"rank {guilty} could not serialise") as caught:
            metric.compute()
        metric.reset()
        metric.add([backend.rank])
        return caught.value.rank, metric.compute()

    assert values(run_ranks(world, rank)) == [(guilty, list(range(world)))] * world


@pytest.mark.parametrize("samples", [[7, 8], None])
def test_a_call_leaves_what_was_added_before(samples: list[int] | None) -> None:
    metric = Samples(dist_backend="non_dist")
    metric.add([1, 2, 3])
    if samples is None:
        with pytest.raises(TypeError):
            metric(None)
    else:
        assert metric(samples) == samples
    assert metric.compute() == [1, 2, 3]
    metric.reset()
    assert metric.compute() == []


def test_the_backend_is_a_name_an_instance_or_the_default() -> None:
    backend = get_dist_backend("non_dist")
    assert isinstance(backend, BaseDistBackend)
    for given_backend in ("non_dist", backend, None):
        assert Samples(dist_backend=given_backend).dist_backend is backend


def test_an_unknown_collect_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="'zip' is not known; use 'unzip' or 'cat'"):
        Samples(dist_collect_mode="zip")  # type: ignore[arg-type]


def test_only_rank_0_computes() -> None:
    computed_on = []

    def rank(backend: ThreadsDist) -> Any:
        class Telling(Samples):
            def compute_metric(self, results: list[Any]) -> Any:
                computed_on.append(backend.rank)
                return len(results)

        metric = Telling(dist_backend=backend)
        metric.add([1, 2])
        return metric.compute()

    assert values(run_ranks(4, rank)) == [8] * 4
    assert computed_on == [0]
