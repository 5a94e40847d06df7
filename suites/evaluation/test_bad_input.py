"""Whatever is wrong with an evaluation is one clear error on every rank, and nothing hangs."""

import re
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import ByLength, HarnessError, RankError, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.metrics import Accuracy, Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks, values
from suites.properties.cases import Entries

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


ON_ONE_RANK: dict[str, tuple[dict[str, Any], int, str]] = {
    "a sample raises": ({"samples": Broken(ITEMS)}, 2, "sample 4 .*OSError: bad sector"),
    "an element of a stream raises": (
        {"samples": ByRank(lambda rank: lambda: map(Broken(ITEMS).__getitem__, reads(rank)))},
        1, "sample 4 .*OSError: bad sector",
    ),
    "a function returns no stream": (
        {"samples": ByRank(lambda rank: lambda: None if rank == 1 else iter(ITEMS))},
        1, "samples .*NoneType",
    ),
    "a shard does not open": (
        {"samples": ByRank(lambda rank: ShardedStream(["absent/0", "absent/1"], open))},
        0, "sample 0 .*'absent/0' .*FileNotFoundError",
    ),
    "a sample is None": (
        {"samples": [*ITEMS[:5], None, *ITEMS[6:]]}, 2, r"sample 4 .* 5\b.*'x', 'label'.*NoneType",
    ),
    "samples are gone": (
        {"samples": ByRank(lambda rank: Shrinking(ITEMS))}, 0, "sample 6 .*IndexError",
    ),
    "predict returns too few rows": (
        {"predict": ByRank(lambda rank: lambda batch: predict(batch)[: 2 - (rank == 2)])},
        2, "samples 4, 5, in predict.* 2 samples .* 1 rows",
    ),
    "the metric gets another shape": (
        {"predict": lambda batch: predict(batch)[:, :, None]}, 0, "samples 0, 1, .* 'a'",
    ),
    "a label is not a class": (
        {"samples": [*ITEMS[:9], {"x": 0.0, "label": 3}]}, 1, "samples 8, 9, .*sample 9 has 3",
    ),
    "update returns one array": (
        {"update": lambda out, batch: out if 1 in batch["x"] else (out, batch["label"])},
        0, "samples 0, 1, in update.*ndarray",
    ),
    "collate returns None": (
        {"collate": ByRank(lambda rank: lambda samples: None)},
        0, "sample 0 .* 1: .*collate .*None.*ranks 1, 2 failed too",
    ),
    "collate loses a label": (
        {
            "collate": lambda samples: {"x": np.array([s["x"] for s in samples]), "y": np.zeros(1)},
            "fixed_shape": False, "even_calls": False,
        },
        0, r"samples 0, 1, .* 'a'.*\(2, 3\).*\(1,\)",
    ),
    "an iterator ends in predict": (
        {"predict": lambda batch: next(iter(()))}, 0, "samples 0, 1, in predict.*StopIteration",
    ),
    "the progress function raises": (
        {"progress": ByRank(lambda rank: lambda done, total: 1 // (rank - 1))},
        1, "samples 2, 3, in progress.*ZeroDivisionError",
    ),
    "the samples do not open": (
        {"samples": ByRank(lambda rank: Unsized(ITEMS) if rank == 2 else ITEMS)},
        2, "OSError: the index is not there",
    ),
    "ranks that are threads share a metric": (
        {"metrics": {"shared": Accuracy()}}, 0, "'shared' .*threads",
    ),
    "the entries of a metric can't be sent": (
        {"metrics": ByRank(lambda rank: {"kept": Entries()}),
         "update": lambda out, batch: ([threading.Lock() for _ in out],)},
        1, "committing.*pickle.*lock",  # rank 0 sends none
    ),
    "the length of a sample is not known": (
        {"by_length": ByLength(lambda sample: 3 if sample["x"] < 7 else 1 // 0)},
        2, "sample 7 .*ZeroDivisionError",
    ),
}  # fmt: skip
"""What is changed, the first rank that fails, and what is named in the RankError of every rank."""

ON_ALL_RANKS: dict[str, tuple[dict[str, Any], str]] = {
    "there are no samples": ({"samples": []}, "no samples"),
    "there are arrays without samples": ({"samples": (np.zeros(0), np.zeros(0))}, "no samples"),
    "ranks have other numbers of samples": (
        {"samples": ByRank(lambda rank: ITEMS[rank:])}, "10 on rank 0 .* 9 on rank 1",
    ),
    "ranks were given shares of their own": (
        {"samples": ByRank(lambda rank: ITEMS[rank::RANKS][:3])}, "sample 0 .* 0 and 1",
    ),
    "ranks list files in another order": (
        {"samples": ByRank(lambda rank: [Path("b"), Path("a")][:: 1 if rank else -1])},
        "sample 0 .* 0 and 1",
    ),
    "the progress is a number": ({"progress": 3}, r"progress .*\b3\b"),
    "predictions go to a number": ({"predictions": 3}, r"predictions\b.*\b3\b"),
    "predict returns another shape on a rank": (
        {"predict": ByRank(lambda rank: lambda batch: predict(batch)[:, : 3 - (rank == 1)])},
        "rank 1 .* rank 0",
    ),
    "the limit leaves nothing": ({"limit": 0}, "limit=0"),
}  # fmt: skip
"""What is changed, and what is named in the UsageError that every rank raises."""


def same_error(outcomes: list[Any], kind: type[HarnessError]) -> str:
    """Return the message of the error that all ranks raised."""
    assert_each_raised(outcomes, kind)
    (message,) = set(map(str, outcomes))
    return message


@pytest.mark.parametrize("name", ON_ONE_RANK)
def test_what_fails_on_a_rank_is_named_on_every_rank(name: str) -> None:
    changed, guilty, found = ON_ONE_RANK[name]
    outcomes = run(**changed)
    assert re.search(found, same_error(outcomes, RankError))
    assert {outcome.rank for outcome in outcomes} == {guilty}
    assert outcomes[guilty].__cause__ is not None


@pytest.mark.parametrize("name", ON_ALL_RANKS)
def test_what_every_rank_can_see_is_a_usage_error_on_every_rank(name: str) -> None:
    changed, found = ON_ALL_RANKS[name]
    assert re.search(found, same_error(run(**changed), UsageError))


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
        assert_each_raised(run(predict=interrupted, samples=samples, workers=2), kind)
    assert not [t for t in threading.enumerate() if t.name.startswith("disteval-loading")]
