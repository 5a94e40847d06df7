"""Batches made by length hold every sample once, keep the budget, and are equal on all ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.data.by_length import plan_by_length
from disteval.data.length_of import length_of
from disteval.data.lengths import gather_lengths, length_setting
from disteval.data.samples import open_samples
from disteval.errors import RankError
from hypothesis import given
from hypothesis import strategies as st

from suites.data.test_batching import counted
from suites.helpers.thread_world import run_ranks, values

many_lengths = st.lists(st.integers(0, 40), max_size=60).map(lambda some: np.array(some, np.int64))
worlds = st.integers(1, 7)
batch_sizes = st.integers(1, 12)
budgets = st.none() | st.integers(40, 200)


@given(many_lengths, worlds, batch_sizes, st.booleans(), budgets, st.booleans(), st.booleans())
def test_every_sample_counts_once_and_no_batch_exceeds_the_budget(
    lengths: np.ndarray,
    world: int,
    batch_size: int,
    sort: bool,
    budget: int | None,
    pad: bool,
    fixed: bool,
) -> None:
    def plan(world: int, rank: int) -> Any:
        return plan_by_length(
            lengths, world, rank, batch_size, sort=sort, max_tokens=budget, pad=pad,
            step=batch_size if fixed else 1,
        )  # fmt: skip

    plans = [plan(world, rank) for rank in range(world)]
    assert sorted(counted(plans)) == list(range(len(lengths)))
    for one in plans:
        assert sum(len(picked.indices) for picked in one) == one.samples
        assert len(list(one)) == len(one)
    if pad:
        assert len({len(one) for one in plans}) == 1
    batches = [picked for one in plans for picked in one]
    for picked in batches:
        assert 0 < len(picked.indices) <= batch_size
        assert picked.rows == (batch_size if fixed and not budget else len(picked.indices))
        assert budget is None or len(picked.indices) * lengths[picked.indices].max() <= budget
    # The same batches at any world size.
    alone = sorted(picked.indices.tolist() for picked in plan(1, 0))
    assert sorted(picked.indices.tolist() for picked in batches if picked.counted) == alone


@given(many_lengths, worlds, batch_sizes, st.booleans(), st.none() | st.integers(40, 200))
def test_the_longest_come_first_and_ranks_have_equal_work(
    lengths: np.ndarray, world: int, batch_size: int, sort: bool, budget: int | None
) -> None:
    loads = []
    for rank in range(world):
        plan = plan_by_length(
            lengths, world, rank, batch_size, sort=sort, max_tokens=budget, pad=False
        )
        costs = [len(one.indices) * int(lengths[one.indices].max()) for one in plan]
        assert costs == sorted(costs, reverse=True)
        loads.append(sum(costs))
    most = batch_size * int(lengths.max(initial=0))
    assert max(loads) - min(loads) <= most


@given(many_lengths.filter(len), batch_sizes, st.integers(40, 200))
def test_a_batch_ends_only_where_the_next_sample_does_not_fit(
    lengths: np.ndarray, batch_size: int, budget: int
) -> None:
    plan = plan_by_length(lengths, 1, 0, batch_size, max_tokens=budget)
    batches = sorted(one.indices.tolist() for one in plan)
    for batch, following in pairwise(batches):
        larger = [*batch, following[0]]
        assert len(larger) > batch_size or len(larger) * lengths[larger].max() > budget


def test_a_batch_may_use_its_whole_budget() -> None:
    plan = plan_by_length(np.full(6, 5), 1, 0, 8, max_tokens=20)
    assert [one.indices.tolist() for one in plan] == [[0, 1, 2, 3], [4, 5]]


def test_the_rank_with_the_least_work_gets_the_most_expensive_batch_of_a_round() -> None:
    lengths = np.array([9, 5, 4, 1])
    plans = [plan_by_length(lengths, 2, rank, 1, sort=True) for rank in range(2)]
    assert [[one.indices.tolist() for one in plan] for plan in plans] == [[[0], [3]], [[1], [2]]]


def test_sorted_batches_hold_samples_of_similar_length() -> None:
    lengths = np.array([1, 9, 2, 9, 1, 8])
    plan = plan_by_length(lengths, 1, 0, 2, sort=True)
    assert [one.indices.tolist() for one in plan] == [[1, 3], [5, 2], [0, 4]]


def test_a_sample_longer_than_the_budget_is_named() -> None:
    message = "sample 1 .*9.* 2 of 3 .*=5"
    with pytest.raises(UsageError, match=message):
        plan_by_length(np.array([5, 9, 7]), 1, 0, 8, max_tokens=5)


TEXTS = [{"text": "x" * (n % 7), "n": n, "tokens": list(range(n % 5))} for n in range(11)]


@pytest.mark.parametrize(
    ("samples", "length", "expected"),
    [
        (TEXTS, None, [n % 5 for n in range(11)]),
        (TEXTS, "n", list(range(11))),
        (TEXTS, "text", [n % 7 for n in range(11)]),
        (TEXTS, lambda sample: len(sample["text"]) + 1, [n % 7 + 1 for n in range(11)]),
        (TEXTS, np.arange(11) * 2, [2 * n for n in range(11)]),
        (TEXTS, list(range(11)), list(range(11))),
        ({"n": np.arange(11), "x": np.zeros(11)}, "n", list(range(11))),
        ({"n": np.arange(11), "tokens": np.zeros((11, 6))}, None, [6] * 11),
        ([(np.zeros(n), 1) for n in range(11)], None, list(range(11))),
        (["a" * n for n in range(11)], None, list(range(11))),
        ([np.zeros((n + 500, 2)) for n in range(11)], None, [n + 500 for n in range(11)]),
        ([], None, []),
    ],
)
@pytest.mark.parametrize("world", [1, 3])
def test_every_rank_gets_the_length_of_each_sample(
    samples: Any, length: Any, expected: list[int], world: int
) -> None:
    size = len(expected)
    found = values(
        run_ranks(
            world, lambda backend: gather_lengths(open_samples(samples), size, length, backend)
        )
    )
    assert [lengths.tolist() for lengths in found] == [expected] * world
    assert all(lengths.dtype == np.int64 for lengths in found)


@pytest.mark.parametrize("length", ["n", range(11)])
def test_only_the_first_samples_are_asked_for_where_there_is_a_limit(length: Any) -> None:
    samples = {"n": np.arange(11)}
    (found,) = values(
        run_ranks(1, lambda backend: gather_lengths(open_samples(samples), 5, length, backend))
    )
    assert found.tolist() == [0, 1, 2, 3, 4]


def test_each_rank_reads_its_own_share_and_known_lengths_read_nothing() -> None:
    class Samples(list):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)

    read: list[int] = []
    run_ranks(3, lambda backend: gather_lengths(Samples(TEXTS), 11, "n", backend))
    assert sorted(read) == list(range(11))
    read.clear()
    columns = open_samples({"n": np.arange(11), "x": Samples(TEXTS)})
    run_ranks(3, lambda backend: gather_lengths(columns, 11, "n", backend))
    assert read == []
    run_ranks(3, lambda backend: gather_lengths(Samples(TEXTS), 11, range(11), backend))
    assert read == []


def test_of_a_data_set_with_columns_only_the_one_with_the_lengths_is_read() -> None:
    class Table(list):
        """A data set with the methods of a Hugging Face one."""

        def select_columns(self, names: list[str]) -> Table:
            return Table({name: sample[name] for name in names} for sample in self)

        def __getitems__(self, indices: list[int]) -> list[Any]:
            rows = [self[index] for index in indices]
            assert {*map(tuple, rows)} == {("text",)}
            return rows

    def rank(backend: Any) -> Any:
        return gather_lengths(open_samples(Table(TEXTS)), 11, "text", backend).tolist()

    assert values(run_ranks(2, rank)) == [[n % 7 for n in range(11)]] * 2


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("words", r"sample \d.*'words'"),
        (lambda sample: -sample["n"], r"sample \d.*-\d"),
        (lambda sample: sample["n"] / 2, r"sample 0.*0\.0"),
        (lambda sample: True, "True"),
        (np.zeros(3, int), r"\(3,\).* 11 "),
        (np.zeros(11), "float64"),
        (-np.arange(11), "sample 1.*-1"),
        (np.full(11, 2**63 + 5, np.uint64), "sample 0.*9223372036854775813"),
        (lambda sample: 2**70, r"sample \d.*11805916"),
    ],
)  # fmt: skip
def test_wrong_lengths_are_the_same_error_on_every_rank(length: Any, message: str) -> None:
    found = run_ranks(3, lambda backend: gather_lengths(TEXTS, 11, length, backend))
    for outcome in found:
        with pytest.raises(UsageError, match=message):
            values([outcome])
    assert len(set(map(str, found))) == 1


def test_a_sample_whose_length_raises_is_an_error_on_every_rank() -> None:
    def length(sample: Any) -> int:
        return 10 // (9 - sample["n"])

    found = run_ranks(3, lambda backend: gather_lengths(TEXTS, 11, length, backend))
    message = "rank 2.*sample 9.*ZeroDivision"
    for outcome in found:
        with pytest.raises(RankError, match=message):
            values([outcome])
    assert isinstance(found[2].__cause__.__cause__, ZeroDivisionError)


def test_settings_differ_where_lengths_differ() -> None:
    assert length_setting(np.arange(3)) == length_setting(np.arange(3))
    assert length_setting(np.arange(3)) != length_setting(np.arange(1, 4))
    assert length_setting("n") != length_setting(None) != length_setting(len)
    assert length_of({"input_ids": np.zeros(4)}) == 4
