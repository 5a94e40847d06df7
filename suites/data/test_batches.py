"""Batches are the same at any world size and within their budget, whatever the samples are in."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from disteval import ByLength, HarnessError, RankError, UsageError, evaluate
from disteval.metrics import BaseMetric
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values
from suites.properties.cases import OF_ROWS

pytestmark = pytest.mark.usefixtures("without_canary")

own = threading.local()
"""What each rank, which is a thread, was given."""


class Batches(BaseMetric):
    """A metric that notes the numbers of the samples of each batch."""

    def add(self, outputs: Any, *, ids: Any = None) -> None:
        own.batches.append(np.asarray(ids).tolist())
        self._extend(np.asarray(outputs).tolist(), ids)

    def compute_metric(self, results: list[Any]) -> int:
        return len(results)


def no_model(batch: Any) -> Any:
    while isinstance(batch, dict | tuple):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return np.zeros(len(batch))


def on_ranks(
    samples: Any, world: int, batch_size: int, length: Any = None, max_tokens: Any = None,
    sort: bool = False, by_length: ByLength | None = None,
) -> list[Any]:  # fmt: skip
    """Return the batches of each rank, by the numbers of their samples, or its exception."""
    if sort or max_tokens:
        by_length = ByLength(length, max_tokens, sort)

    def rank(backend: Any) -> Any:
        own.batches = []
        evaluate(
            no_model, samples, {"b": Batches()}, backend, batch_size,
            fixed_shape=False, even_calls=False, by_length=by_length,
            update=lambda outputs, batch: (outputs,),
        )  # fmt: skip
        return own.batches

    return run_ranks(world, rank)


def samples_of(kind: str, lengths: list[int]) -> Any:
    rows = [{"number": number, "n": length} for number, length in enumerate(lengths)]
    if kind == "columns":
        return {"number": np.arange(len(lengths)), "n": np.array(lengths)}
    return OF_ROWS[kind](rows)


PLANS = st.just({}) | st.fixed_dictionaries(
    {"length": st.just("n"), "sort": st.booleans(), "max_tokens": st.integers(30, 90)}
)


@pytest.mark.parametrize("kind", ["columns", "rows", "stream", "shards"])
@settings(max_examples=12)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=80), st.integers(2, 5), st.integers(1, 6),
    PLANS,
)  # fmt: skip
def test_whole_batches_are_the_same_at_any_world_size(
    kind: str, lengths: list[int], world: int, batch_size: int, plan: dict[str, Any]
) -> None:
    ranks = values(on_ranks(samples_of(kind, lengths), world, batch_size, **plan))
    batches = [batch for rank in ranks for batch in rank]
    (alone,) = values(on_ranks(samples_of(kind, lengths), 1, batch_size, **plan))
    assert sorted(batches) == sorted(alone)
    assert len({number for batch in batches for number in batch}) == len(lengths)
    assert sum(map(len, batches)) == len(lengths)
    assert max(map(len, batches)) <= batch_size
    if "max_tokens" not in plan or kind == "shards":  # a rank reads whole shards
        return
    costs = [[len(batch) * max(lengths[i] for i in batch) for batch in rank] for rank in ranks]
    assert max(map(max, filter(None, costs))) <= plan["max_tokens"]
    loads = [sum(rank) for rank in costs]
    assert max(loads) - min(loads) <= batch_size * max(lengths)
    if kind != "stream":
        assert costs == [sorted(rank, reverse=True) for rank in costs], "the longest come first"


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), min_size=2, max_size=40), st.integers(40, 200))
def test_a_batch_ends_only_where_the_next_sample_does_not_fit(
    lengths: list[int], budget: int
) -> None:
    (found,) = on_ranks(samples_of("rows", lengths), 1, 6, length="n", max_tokens=budget)
    for batch, following in itertools.pairwise(sorted(found)):
        larger = [*batch, following[0]]
        assert len(larger) > 6 or len(larger) * max(lengths[i] for i in larger) > budget


TEXTS = [{"text": "x" * (n % 7), "n": n, "tokens": list(range(n % 5))} for n in range(11)]


@pytest.mark.parametrize(
    ("samples", "length", "expected"),
    [
        (TEXTS, None, [n % 5 for n in range(11)]),
        (TEXTS, "n", list(range(11))),
        (TEXTS, "text", [n % 7 for n in range(11)]),
        (TEXTS, lambda sample: len(sample["text"]) + 1, [n % 7 + 1 for n in range(11)]),
        (TEXTS, np.arange(11) * 2, [2 * n for n in range(11)]),
        ({"n": np.arange(11), "x": np.zeros(11)}, "n", list(range(11))),
        ({"n": np.arange(11), "tokens": np.zeros((11, 6))}, None, [6] * 11),
        ([(np.zeros(n), 1) for n in range(11)], None, list(range(11))),
        (["a" * n for n in range(11)], None, list(range(11))),
        ([np.zeros((n + 500, 2)) for n in range(11)], None, [n + 500 for n in range(11)]),
    ],
)
@pytest.mark.parametrize("world", [1, 3])
def test_lengths_are_told_in_many_ways(
    samples: Any, length: Any, expected: list[int], world: int
) -> None:
    plan: dict[str, Any] = {"max_tokens": 3 * max(expected), "sort": True}
    found = values(on_ranks(samples, world, 4, length=length, **plan))
    assert found == values(on_ranks(samples, world, 4, length=expected, **plan))
    cost = max(len(batch) * max(expected[i] for i in batch) for rank in found for batch in rank)
    assert cost <= plan["max_tokens"]


def test_each_rank_reads_its_own_share_of_lengths_and_known_ones_read_nothing() -> None:
    class Samples(list):
        def __getitem__(self, index: Any) -> Any:
            read[index] += 1
            return super().__getitem__(index)

    times = []
    for length in ("n", range(11)):
        read: Counter[int] = Counter()
        values(on_ranks(Samples(TEXTS), 3, 4, length=length, max_tokens=50))
        times.append(read)
    assert times[0] - times[1] == Counter(range(11))


def test_of_a_data_set_with_columns_only_the_one_with_the_lengths_is_read() -> None:
    class Table(list):
        """A data set with the methods of a Hugging Face one."""

        def select_columns(self, names: list[str]) -> Table:
            return Table({name: sample[name] for name in names} for sample in self)

        def __getitems__(self, indices: list[int]) -> list[Any]:
            rows = [self[index] for index in indices]
            read.update((*row,) for row in rows)
            return rows

    read: Counter[tuple[str, ...]] = Counter()
    values(on_ranks(Table(TEXTS), 2, 4, length="text", max_tokens=50))
    assert read[("text",)] == 11


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("words", ("sample ", "'words'")),
        (lambda sample: -sample["n"], ("sample ", "-")),
        (lambda sample: sample["n"] / 2, ("sample 0", "0.0")),
        (lambda sample: True, ("True",)),
        (lambda sample: 2**70, ("sample ", "11805916")),
        (lambda sample: 60, ("sample 0", "60", "50", "11")),
        (np.zeros(3, int), ("(3,)", "11")),
        (np.zeros(11), ("float64",)),
        (-np.arange(11), ("sample 1", "-1")),
        (np.full(11, 2**63 + 5, np.uint64), ("sample 0", "9223372036854775813")),
    ],
)
def test_wrong_lengths_are_the_same_error_on_every_rank(
    length: Any, words: tuple[str, ...]
) -> None:
    found = on_ranks(TEXTS, 3, 4, length=length, max_tokens=50)
    assert {type(outcome) for outcome in found} == {UsageError}
    (message,) = set(map(str, found))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (None, ("sample 3", "9", "5")),
        (lambda text: len(text) if len(text) < 7 else -7, ("sample 2", "-7")),
        (np.arange(4), ("ndarray",)),
    ],
)
def test_wrong_lengths_of_elements_are_named(length: Any, words: tuple[str, ...]) -> None:
    texts = ["x" * length for length in (3, 1, 7 if callable(length) else 2, 9)]
    with pytest.raises(HarnessError) as caught:
        values(on_ranks(iter(texts), 1, 2, length=length, max_tokens=5 if length is None else 50))
    assert all(word in str(caught.value) for word in words), caught.value


class StopError(Exception):
    """The end of an evaluation of which enough was seen."""


class Stopping:
    """A model that ends the evaluation after so many batches, all of which it keeps."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.batches: list[Any] = []

    def __call__(self, batch: Any) -> Any:
        if len(self.batches) == self.count:
            raise StopError("seen enough")
        self.batches.append(batch)
        return np.zeros(len(batch))


def test_very_many_samples_take_no_memory() -> None:
    class Many:
        def __len__(self) -> int:
            return 10**10

        def __getitem__(self, index: int) -> int:
            return index

    model = Stopping(20)
    tracemalloc.start()
    try:
        with pytest.raises(RankError, match="StopError"):
            evaluate(model, Many(), {}, "non_dist", 256)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(map(len, model.batches)) == 20 * 256
    assert peak < 2**22


def test_no_more_than_a_window_of_a_stream_is_sorted() -> None:
    taken: list[str] = []

    def endless() -> Iterator[str]:
        for number in itertools.count():
            taken.append("x" * (number % 100))
            yield taken[-1]

    model = Stopping(1)
    with pytest.raises(RankError, match="StopError"):
        evaluate(model, endless, {}, "non_dist", 8, by_length=ByLength())
    assert [len(text) for text in model.batches[0]] == sorted(map(len, taken), reverse=True)[:8]
    assert 8 < len(taken) < 8000


def test_few_batches_are_read_ahead_and_none_after_the_end() -> None:
    begun: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(10**6):
            begun.append(number)
            yield number

    with pytest.raises(RankError, match="StopError"):
        evaluate(Stopping(5), numbers, {}, "non_dist", 10, workers=2)
    assert 50 < len(begun) <= 10 * (6 + 2 * 3)
    assert not [one for one in threading.enumerate() if one.name.startswith("disteval-loading")]


def test_a_sample_that_a_thread_fails_to_read_is_an_error_in_its_turn() -> None:
    def numbers() -> Iterator[int]:
        yield from range(25)
        raise OSError("the disk is gone")

    model = Stopping(99)
    with pytest.raises(RankError, match=r"sample 25\b.*OSError"):
        evaluate(model, numbers, {}, "non_dist", 10, workers=2)
    assert len(model.batches) == 2


def test_batches_that_are_made_already_are_kept_and_each_sample_is_in_one() -> None:
    made = [[4], [0, 2, 5], [3, 1]]
    lengths = [1, 1, 1, 1, 9, 1]
    for world in (1, 2, 3):
        found = values(on_ranks(TEXTS[:6], world, 3, by_length=ByLength(lengths, batches=made)))
        assert sorted(itertools.chain(*found)) == sorted(made)
        assert found[0][0] == [4]  # the most expensive first
    for wrong in ([[4], [0, 2, 5]], [[4], [0, 2, 5], [3, 1, 4]], [[4, 0, 2, 5], [3, 1]], [[]]):
        with pytest.raises(UsageError, match="they must have each of the 6 samples once"):
            values(on_ranks(TEXTS[:6], 2, 3, by_length=ByLength(lengths, batches=wrong)))
