"""However samples are held, dealt, batched and limited, each counts once, and in order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from disteval import UsageError, evaluate
from disteval.data.predictions import GatheredPredictions
from disteval.data.shards import ShardedStream
from disteval.metrics import Accuracy, BaseMetric
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values

pytestmark = pytest.mark.usefixtures("without_canary")

CLASSES = 4
LONGEST = 5


def length_of(number: int) -> int:
    return 1 + number * 7 % LONGEST


def label_of(number: int) -> int:
    return number * 3 % CLASSES


def predicted(number: int) -> int:
    return (number * number + 1) % CLASSES


class Numbers(BaseMetric):
    """A metric whose result is the samples' numbers, in the order of the data set."""

    def add(self, outputs: Any, labels: Any, *, ids: Any = None) -> None:
        self._extend(np.asarray(outputs["number"]).tolist(), ids)

    def compute_metric(self, results: list[Any]) -> list[Any]:
        return results


def sample(number: int) -> dict[str, Any]:
    tokens = np.full(length_of(number), number)
    return {"tokens": tokens, "number": number, "label": label_of(number)}


def columns(size: int) -> dict[str, Any]:
    numbers = np.arange(size)
    return {"number": numbers, "label": label_of(numbers)}


class Indexed:
    """Samples that have a length and an index."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> Any:
        return sample(number)


SIZED: dict[str, Callable[[int], Any]] = {
    "dict of columns": columns,
    "tuple of columns": lambda size: (columns(size)["number"], columns(size)["label"]),
    "list of ragged dicts": lambda size: [sample(i) for i in range(size)],
    "list of tuples": lambda size: [(i, label_of(i)) for i in range(size)],
    "indexed": Indexed,
}


def stream_of(size: int, cuts: list[int]) -> Any:
    """Return a stream; of shards, some of them empty, where there are cuts."""
    if not cuts:
        return lambda: (sample(i) for i in range(size))
    ends = [0, *sorted(min(cut, size) for cut in cuts), size]
    parts = list(enumerate(pairwise(ends)))  # empty ones would be equal without a number
    return ShardedStream(parts, lambda part: (sample(i) for i in range(*part[1])))


@st.composite
def evaluations(draw: st.DrawFn) -> tuple[int, Any, dict[str, Any]]:
    """Draw the number of samples, the samples, and the arguments of evaluate."""
    size = draw(st.integers(0, 17))
    kind = draw(st.sampled_from([*SIZED, "stream", "sharded stream"]))
    arguments: dict[str, Any] = {
        "batch_size": draw(st.integers(1, 6)),
        "fixed_shape": draw(st.booleans()),
        "pad": draw(st.booleans()),
        "limit": draw(st.none() | st.integers(0, 20)),
    }
    sized = kind in SIZED
    if sized:
        samples = SIZED[kind](size)
    else:
        cuts = draw(st.lists(st.integers(0, size), min_size=1, max_size=4))
        samples = stream_of(size, cuts if kind == "sharded stream" else [])
    if "columns" in kind or not sized:
        arguments["workers"] = draw(st.sampled_from([0, 2]))
    if draw(st.booleans()):
        arguments |= draw(by_length(size, kind))
    return size, samples, arguments


@st.composite
def by_length(draw: st.DrawFn, size: int, kind: str) -> dict[str, Any]:
    sort = draw(st.booleans())
    tokens = draw(st.integers(LONGEST, 20) if not sort else st.none() | st.integers(LONGEST, 20))
    lengths: list[Any] = [lambda s: length_of(s["number"] if isinstance(s, dict) else s[0])]
    if kind in SIZED:
        lengths.append([length_of(i) for i in range(size)])
    if kind in ("list of ragged dicts", "indexed", "stream", "sharded stream"):
        lengths += [None, "tokens"]
    return {
        "sort_by_length": sort,
        "max_tokens": tokens,
        "length": draw(st.sampled_from(lengths)),
    }


@settings(max_examples=200)
@given(evaluations(), st.integers(1, 5), st.none() | st.integers(1, 6))
def test_each_sample_counts_once_in_order(drawn: Any, world: int, step: int | None) -> None:
    size, samples, arguments = drawn
    calls: list[list[int]] = []

    def predict(batch: Any) -> Any:
        numbers = np.asarray(batch["number"] if isinstance(batch, dict) else batch)
        calls.append(numbers.tolist())
        scores = np.eye(CLASSES)[predicted(numbers)]
        return {"scores": scores, "number": numbers}

    if step is not None:
        predict.slice_rows = lambda rows: min(step, rows)  # type: ignore[attr-defined]

    def update(outputs: Any, batch: Any) -> Any:
        return outputs["scores"], batch["label"] if isinstance(batch, dict) else batch[1]

    def rank(backend: ThreadsDist) -> Any:
        metrics = {"numbers": Numbers(), "accuracy": Accuracy(counts=True)}
        gathered = GatheredPredictions(backend, lambda outputs, batch: outputs["number"])
        result = evaluate(
            predict, samples, metrics, backend, update={"accuracy": update}, predictions=gathered,
            **arguments,
        )  # fmt: skip
        return result, gathered.result

    limit = arguments["limit"]
    count = size if limit is None else min(size, limit)
    outcomes = run_ranks(world, rank)
    if count == 0:
        assert all(isinstance(outcome, UsageError) for outcome in outcomes), outcomes
        return
    right = sum(predicted(i) == label_of(i) for i in range(count))
    predictions = values(outcomes)[0][1]
    assert np.asarray(predictions).tolist() == list(range(count))
    for found, _ in values(outcomes):
        assert found.metrics["numbers"] == list(range(count))
        assert found.metrics["accuracy"]["correct_top1"] == right
        assert found.size == found.evaluated == count
    rows = set(map(len, calls))
    tokens = arguments.get("max_tokens")
    if tokens is not None:
        assert max(len(ids) * max(map(length_of, ids)) for ids in calls) <= tokens
    elif arguments["fixed_shape"] and step is None:
        assert rows == {arguments["batch_size"]}
    elif arguments["fixed_shape"]:
        assert all(many == arguments["batch_size"] or many % step == 0 for many in rows)
        assert all(len(ids) - len(set(ids)) < step for ids in calls), "more than a slice was added"
    assert max(rows) <= arguments["batch_size"]
