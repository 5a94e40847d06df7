"""Whatever is wrong with an evaluation is one clear error on every rank, and nothing hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import (
    ByLength,
    HarnessError,
    RankError,
    UsageError,
    evaluate,
)
from disteval.data import ShardedStream
from disteval.metrics import Accuracy, Bootstrap, Grouped, Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import run_ranks, values

ITEMS = [{"x": float(i), "label": i % 3} for i in range(10)]
RANKS = 3


class ByRank:
    """An argument that differs between ranks."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function


class Broken(list[Any]):
    """Samples of which number 4, which rank 1 holds, can't be read."""

    def __getitem__(self, index: Any) -> Any:
        if index == 4:
            raise OSError("bad sector")
        return super().__getitem__(index)


class Shrinking(list[Any]):
    """Samples of which some are gone when they are read."""

    def __getitem__(self, index: Any) -> Any:
        del self[6:]
        return super().__getitem__(index)


class Unsized(list[Any]):
    """Samples that do not know how many they are."""

    def __len__(self) -> int:
        raise OSError("the index is not there")


def predict(batch: Any) -> Any:
    return np.eye(3)[np.asarray(batch["x"], dtype=int) % 3]


def run(**changed: Any) -> list[Any]:
    """Evaluate ten samples in batches of two, with some arguments replaced, on each rank."""

    def rank(backend: ThreadsDist) -> Any:
        given = {"predict": predict, "samples": ITEMS, "metrics": {"a": Accuracy()}, **changed}
        own = {
            name: value.function(backend.rank) if isinstance(value, ByRank) else value
            for name, value in given.items()
        }
        return evaluate(backend=backend, **{"batch_size": 2, **own})

    return run_ranks(RANKS, rank)


def reads(rank: int) -> list[int]:
    """Return the numbers of the elements that a rank reads of a stream, of which 4 is broken."""
    return [5 if i == 4 and rank != 1 else i for i in range(10)]


def without_a_key(number: int) -> list[Any]:
    return [{"x": 1.0} if i == number else item for i, item in enumerate(ITEMS)]


ON_ONE_RANK: dict[str, tuple[dict[str, Any], str]] = {
    "a sample raises": (
        {"samples": Broken(ITEMS)},
        "rank 2 failed: sample 4 could not be read: OSError: bad sector",
    ),
    "an element of a stream raises": (
        {"samples": ByRank(lambda rank: lambda: map(Broken(ITEMS).__getitem__, reads(rank)))},
        "rank 1 failed: sample 4 of the stream could not be read: OSError: bad sector",
    ),
    "an element raises in the thread that reads ahead": (
        {
            "samples": ByRank(lambda rank: lambda: map(Broken(ITEMS).__getitem__, reads(rank))),
            "workers": 1,
        },
        "rank 1 failed: sample 4 of the stream could not be read: OSError: bad sector",
    ),
    "a function returns no stream": (
        {"samples": ByRank(lambda rank: lambda: None if rank == 1 else iter(ITEMS))},
        "rank 1 failed while reading: UsageError: the function samples returned a value of type "
        "NoneType; it must return an iterable",
    ),
    "a shard does not open": (
        {"samples": ByRank(lambda rank: ShardedStream(["absent/0", "absent/1"], open))},
        "rank 0 failed: sample 0 of the shard 'absent/0' could not be read: FileNotFoundError",
    ),
    "a sample is None": (
        {"samples": [*ITEMS[:5], None, *ITEMS[6:]]},
        "rank 2 failed: sample 4 could not be collated with 5: UsageError: samples of one batch "
        "differ: one is a dict with the keys ['x', 'label'], another is a value of type NoneType",
    ),
    "a sample lacks a field": (
        {"samples": without_a_key(8)},
        "rank 1 failed: sample 8 could not be collated",
    ),
    "samples are gone": (
        {"samples": ByRank(lambda rank: Shrinking(ITEMS))},
        "rank 0 failed: sample 6 could not be read: IndexError",
    ),
    "predict returns too few rows": (
        {"predict": ByRank(lambda rank: lambda batch: predict(batch)[: 2 - (rank == 2)])},
        "rank 2 failed at samples 4, 5, in predict: UsageError: predict got 2 samples and returned "
        "1 rows; it must return one row for each sample",
    ),
    "predict returns None": (
        {"predict": ByRank(lambda rank: lambda batch: None if rank == 1 else predict(batch))},
        "rank 1 failed at samples 2, 3, in predict: UsageError: predict got 2 samples and returned "
        "None; it must",
    ),
    "the metric gets another shape": (
        {"predict": lambda batch: predict(batch)[:, :, None]},
        "rank 0 failed at samples 0, 1, in the metric 'a': UsageError",
    ),
    "a label is not a class": (
        {"samples": [*ITEMS[:9], {"x": 0.0, "label": 3}]},
        "rank 1 failed at samples 8, 9, in the metric 'a': UsageError: labels must be whole "
        "numbers from 0 to 2, but sample 9 has 3",
    ),
    "a label is not a number": (
        {"samples": [*ITEMS[:9], {"x": 0.0, "label": float("nan")}]},
        "rank 1 failed at samples 8, 9, in the metric 'a': UsageError: labels must be whole "
        "numbers",
    ),
    "update returns one array": (
        {"update": lambda out, batch: out if 1 in batch["x"] else (out, batch["label"])},
        "rank 0 failed at samples 0, 1, in update: UsageError: update returned a value of type "
        "ndarray; it must return the arguments of the metric's add, as a tuple",
    ),
    "collate returns None": (
        {"collate": ByRank(lambda rank: lambda samples: None)},
        "rank 0 failed: sample 0 could not be collated with 1: UsageError: collate returned None; "
        "it must return the batch; ranks 1, 2 failed too",
    ),
    "collate loses a sample": (
        {"collate": lambda samples: {k: np.array([samples[0][k]]) for k in ITEMS[0]}},
        "rank 0 failed at samples 0, 1, in predict: UsageError: predict got 2 samples and returned "
        "1 rows",
    ),
    "collate loses a label": (
        {
            "collate": lambda samples: {"x": np.array([s["x"] for s in samples]), "y": np.zeros(1)},
            "fixed_shape": False,
            "even_calls": False,
        },
        "rank 0 failed at samples 0, 1, in the metric 'a': UsageError: predictions of shape (2, 3) "
        "and labels of shape (1,) do not have the same number of samples",
    ),
    "an iterator ends in predict": (
        {"predict": lambda batch: next(iter(()))},
        "rank 0 failed at samples 0, 1, in predict: StopIteration",
    ),
    "the progress function raises": (
        {"progress": ByRank(lambda rank: lambda done, total: 1 // (rank - 1))},
        "rank 1 failed at samples 2, 3, in progress: ZeroDivisionError",
    ),
    "the samples do not open": (
        {"samples": ByRank(lambda rank: Unsized(ITEMS) if rank == 2 else ITEMS)},
        "rank 2 could not begin: OSError: the index is not there",
    ),
    "ranks that are threads share a metric": (
        {"metrics": {"shared": Accuracy()}},
        "rank 0 failed while starting: UsageError: the metric 'shared' is one object that several "
        "threads evaluate with; make the metrics on each rank",
    ),
    "the length of a sample is not known": (
        {"by_length": ByLength(lambda sample: 3 if sample["x"] < 7 else 1 // 0)},
        "rank 2 failed: SampleError: sample 7 has no length: ZeroDivisionError",
    ),
}
"""What is changed, and the message of the RankError that every rank raises."""

ON_ALL_RANKS: dict[str, tuple[dict[str, Any], str]] = {
    "there are no samples": ({"samples": []}, "no samples"),
    "there are arrays without samples": ({"samples": (np.zeros(0), np.zeros(0))}, "no samples"),
    "columns differ in length": (
        {"samples": {"x": np.zeros(10), "label": np.zeros(5)}},
        "samples is a dict of arrays with the lengths {'x': 10, 'label': 5}; give arrays of one",
    ),
    "samples are a tuple": (
        {"samples": tuple(ITEMS)},
        "a list of samples, not a tuple or a dict, holds the samples themselves",
    ),
    "samples are one sample": (
        {"samples": ITEMS[0]},
        "the column 'x' of samples has the type float; it must be an array",
    ),
    "samples are a string": ({"samples": "abc"}, "samples is a str; give the samples"),
    "samples are a class": ({"samples": Broken}, "samples is the class Broken; give an instance"),
    "samples are None": ({"samples": None}, "samples has the type NoneType; give"),
    "ranks have other numbers of samples": (
        {"samples": ByRank(lambda rank: ITEMS[rank:])},
        "the number of samples is 10 on rank 0 and 9 on rank 1",
    ),
    "ranks were given shares of their own": (
        {"samples": ByRank(lambda rank: ITEMS[rank::RANKS][:3])},
        "sample 0 is not the same on ranks 0 and 1",
    ),
    "ranks have shuffled arrays by seeds of their own": (
        {
            "samples": ByRank(
                lambda rank: (np.random.default_rng(rank).permutation(99), np.ones(99))
            )
        },
        "is not the same on ranks 0 and 1",
    ),
    "ranks list files in another order": (
        {"samples": ByRank(lambda rank: [Path("b"), Path("a")][:: 1 if rank else -1])},
        "sample 0 is not the same on ranks 0 and 1",
    ),
    "ranks have other settings": (
        {"batch_size": ByRank(lambda rank: 3 if rank else 2)},
        "batch_size is 2 on rank 0 and 3 on ranks 1, 2",
    ),
    "a stream ends early on a rank": (
        {"samples": ByRank(lambda rank: lambda: iter(ITEMS[: 7 if rank == 1 else 10]))},
        "it has 10 elements on rank 0 and 7 on rank 1, and its first 7 elements are the same",
    ),
    "a stream has another order on a rank": (
        {"samples": ByRank(lambda rank: lambda: iter(ITEMS[:: -1 if rank == 2 else 1]))},
        "it has 10 elements on rank 0 and 10 on rank 2, and element 0 is the first that differs",
    ),
    "a stream was read before": (
        {"samples": ByRank(lambda rank: iter(()))},
        "the stream has no elements; an iterator, such as a generator or an open file, yields its",
    ),
    "shards have another order on a rank": (
        {"samples": ByRank(lambda rank: ShardedStream(["a", "b"][:: -1 if rank else 1], list))},
        "ranks do not evaluate the same thing",
    ),
    "the progress is a number": ({"progress": 3}, "progress must be True or False, not 3"),
    "a flag is a name": (
        {"by_length": "tokens"},
        "by_length must be a disteval.ByLength, such as ByLength(), not 'tokens'",
    ),
    "there is no model": ({"predict": None}, "predict must be a function, not None"),
    "metrics are a list": ({"metrics": [Accuracy()]}, "metrics must be a dict of names"),
    "a metric is a class": ({"metrics": {"a": Accuracy}}, "make one, Accuracy()"),
    "a metric is of another class on a rank": (
        {"metrics": ByRank(lambda rank: {"a": Accuracy() if rank else Grouped(Accuracy())})},
        "the metric 'a' is disteval.metrics.grouped.Grouped on rank 0 and",
    ),
    "a metric has other settings on a rank": (
        {"metrics": ByRank(lambda rank: {"a": Bootstrap(Accuracy(topk=1 + (rank == 2)))})},
        "topk of metric of the metric 'a' is (1,) on rank 0 and (2,) on rank 2",
    ),
    "predict returns another shape on a rank": (
        {"predict": ByRank(lambda rank: lambda batch: predict(batch)[:, : 3 - (rank == 1)])},
        "predict returns other outputs on rank 1 than on rank 0",
    ),
    "the batch size is no number": ({"batch_size": "256"}, "batch_size must be a whole number"),
    "the limit is negative": ({"limit": -1}, "limit must be a whole number from 0 up, not -1"),
    "the limit leaves nothing": ({"limit": 0}, "as of an empty data set or with limit=0"),
    "lengths are too few": (
        {"by_length": ByLength([1, 2])},
        "it must hold one whole number for each of the 10 samples",
    ),
    "a sample has more tokens than a batch may": (
        {"by_length": ByLength(list(range(10)), 3, sort=False)},
        "max_tokens=3; raise max_tokens, or cut the samples",
    ),
}
"""What is changed, and the message of the UsageError that every rank raises."""


def same_error(outcomes: list[Any], kind: type[HarnessError]) -> str:
    """Return the message of the error that all ranks raised."""
    for outcome in outcomes:
        assert isinstance(outcome, kind), repr(outcome)
    (message,) = set(map(str, outcomes))
    return message


@pytest.mark.parametrize("name", ON_ONE_RANK)
def test_what_fails_on_a_rank_is_named_on_every_rank(name: str) -> None:
    changed, message = ON_ONE_RANK[name]
    outcomes = run(**changed)
    assert same_error(outcomes, RankError).startswith(message)
    failed = [outcome for outcome in outcomes if outcome.__cause__ is not None]
    assert failed, "the rank's own error is the cause there"


@pytest.mark.parametrize("name", ON_ALL_RANKS)
def test_what_every_rank_can_see_is_a_usage_error_on_every_rank(name: str) -> None:
    changed, message = ON_ALL_RANKS[name]
    assert message in same_error(run(**changed), UsageError)


def test_outputs_that_are_nan_are_refused_with_the_sample() -> None:
    message = same_error(run(predict=lambda batch: predict(batch) * np.nan), RankError)
    assert "NaN" in message
    assert "sample 0" in message
    outcomes = run(
        predict=lambda batch: batch["x"] * np.nan, metrics=ByRank(lambda _: {"m": Mean()})
    )
    assert "sample 0" in same_error(outcomes, RankError)


def test_ranks_without_samples_agree_with_the_others() -> None:
    outcomes = run(samples=ITEMS[:1], even_calls=False)
    assert [found.metrics for found in values(outcomes)] == [{"a": {"top1": 1.0}}] * RANKS


def test_an_endless_stream_ends_at_its_limit() -> None:
    def endless() -> Any:
        return ({"x": i, "label": i % 3} for i in count())

    outcomes = run(samples=endless, limit=10)
    assert [(f.size, f.metrics) for f in values(outcomes)] == [(10, {"a": {"top1": 1.0}})] * RANKS


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_held_back_and_ends_the_threads_that_read_ahead(kind: Any) -> None:
    def interrupted(batch: Any) -> Any:
        raise kind

    for samples in ({"x": np.zeros(10)}, lambda: iter(ITEMS)):
        for outcome in run(predict=interrupted, samples=samples, workers=2):
            assert isinstance(outcome, kind)
    assert not [t for t in threading.enumerate() if t.name.startswith("disteval-loading")]
