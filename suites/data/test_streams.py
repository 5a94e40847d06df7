"""Every element of a stream is read once, and streams that differ between ranks are an error."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from disteval import RankError, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.data.same_streams import check_streams
from disteval.data.streams import Stream, is_stream
from disteval.errors import SampleError
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.thread_world import run_ranks, values

Read = tuple[list[range], list[tuple[list[int], list[Any]]]]


def read(backend: ThreadsDist, samples: Any, batch_size: int = 4, **settings: Any) -> Read:
    """Read one rank's share, and return the numbers that all ranks read, and its batches."""
    stream = Stream(samples, backend.rank, backend.world_size, batch_size, **settings)
    batches = [(ids.tolist(), list(kept)) for ids, kept, _ in stream]
    notes = backend.all_gather_object(stream.note())
    return check_streams(notes, stream, backend), batches


def read_on(world: int, samples_of: Callable[[int], Any], **settings: Any) -> list[Any]:
    return run_ranks(world, lambda backend: read(backend, samples_of(backend.rank), **settings))


def elements_of(results: list[Read]) -> dict[int, Any]:
    """Return all ranks' elements by their numbers, each of which must be there once."""
    found = [
        pair
        for _, batches in results
        for ids, kept in batches
        for pair in zip(ids, kept, strict=True)
    ]
    assert len(dict(found)) == len(found)
    return dict(sorted(found))


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.integers(1, 70))
def test_every_element_is_read_once(size: int, world: int, batch_size: int, limit: int) -> None:
    makers = {
        "generator": lambda: (f"text {i}" for i in range(size)),
        "function": lambda: lambda: iter([f"text {i}" for i in range(size)]),
        "file": lambda: io.StringIO("".join(f"text {i}\n" for i in range(size))),
    }
    for kind, make in makers.items():
        results = values(
            read_on(world, lambda _: make(), batch_size=batch_size, limit=limit)  # noqa: B023
        )
        end = "\n" if kind == "file" else ""
        read_in_all = min(size, limit)
        assert elements_of(results) == {i: f"text {i}{end}" for i in range(read_in_all)}
        assert [runs for runs, _ in results] == [[range(read_in_all)]] * world
        # The last batch is the only one that may be shorter.
        for _, batches in results:
            assert all(len(ids) == batch_size for ids, _ in batches[:-1])


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7))
def test_whole_batches_are_the_same_at_any_world_size(
    size: int, world: int, batch_size: int
) -> None:
    def batches(world: int) -> Any:
        results = values(read_on(world, lambda _: iter(range(size)), batch_size=batch_size))
        return sorted(batch for _, found in results for batch in found)

    assert batches(world) == batches(1)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=7), st.integers(1, 5), st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 40)),
)  # fmt: skip
def test_every_shard_is_opened_by_one_rank(
    sizes: list[int], world: int, batch_size: int, limit: int | None
) -> None:
    names = [f"shard{i}" for i in range(len(sizes))]
    opened: list[str] = []

    def open_shard(name: str) -> Iterator[str]:
        opened.append(name)
        return (f"{name} element {i}" for i in range(sizes[names.index(name)]))

    def on(world: int) -> Any:
        return read_on(
            world,
            lambda _: ShardedStream(names, open_shard),
            batch_size=batch_size,
            limit=limit,
        )

    found = on(world)
    if not sum(sizes):
        assert all("no elements" in str(error) for error in found)
        return
    everything = [
        ((shard << 40) + i, f"{name} element {i}")
        for shard, name in enumerate(names)
        for i in range(sizes[shard])
    ]
    results = values(found)
    assert elements_of(results) == dict(everything[:limit])
    assert [i for run in results[0][0] for i in run] == [i for i, _ in everything[:limit]]
    assert all(runs == results[0][0] for runs, _ in results)
    if limit is None:
        assert sorted(opened) == sorted(names)
    one = values(on(1))
    together = sorted(batch for _, batches in results for batch in batches)
    assert together == sorted(one[0][1])


DIFFERENT: list[tuple[Callable[[int], Any], str]] = [
    (lambda rank: range(10 - rank), "9 on rank 1"),
    (lambda rank: range(10 + 5 * rank), "15 on rank 1"),
    (
        lambda rank: [0, 1, 2, 3] if rank == 0 else [0, 2, 1, 3],
        "4 elements on rank 0 and 4 on rank 1, and element 1 is the first that differs",
    ),
    (
        lambda rank: itertools.islice(range(99), rank, None, 2),  # as split_dataset_by_node does
        "50 elements on rank 0 and 49 on rank 1, and element 0 is the first that differs",
    ),
    (lambda rank: np.arange(6.0) + (rank == 1) * 1e-12, "element 0 is the first that differs"),
    (lambda rank: [] if rank == 1 else [1], "1 elements on rank 0 and 0 on rank 1"),
    (
        lambda rank: [i if i != 5000 or rank == 0 else -1 for i in range(9000)],
        "the first element that differs is one of 5000 to 5007",
    ),
]


@pytest.mark.parametrize(("samples_of", "message"), DIFFERENT)
@pytest.mark.parametrize("world", [2, 3])
def test_streams_that_differ_are_one_error_on_every_rank(
    samples_of: Callable[[int], Any], message: str, world: int
) -> None:
    for outcome in read_on(world, lambda rank: iter(samples_of(min(rank, 1)))):
        assert isinstance(outcome, UsageError)
        assert message in str(outcome)
        assert "same whole" in str(outcome)


def test_shards_that_differ_are_an_error_on_every_rank() -> None:
    def shards(rank: int) -> Any:
        return ShardedStream(["a", "b", "c"] if rank == 0 else ["b", "a", "c"], list)

    for outcome in read_on(2, shards):
        assert isinstance(outcome, UsageError)
        assert "'a' on rank 0" in str(outcome)
    for outcome in read_on(2, lambda rank: shards(0) if rank == 0 else iter("abc")):
        assert isinstance(outcome, UsageError)
        assert "3 shards" in str(outcome)


def one_dict() -> Iterator[Any]:
    element = {"x": 0}
    for element["x"] in range(31):
        yield element


def one_array(form: Callable[[Any, int], Any]) -> Callable[[], Iterator[Any]]:
    def yielding() -> Iterator[Any]:
        buffer = np.zeros((1, 4))
        for number in range(31):
            buffer[:] = number % 3
            yield form(buffer, number % 3)

    return yielding


class OneBuffer:
    """A data set that reads every sample into one array."""

    def __init__(self) -> None:
        self.buffer = np.zeros(4)

    def __len__(self) -> int:
        return 31

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index % 3
        return {"x": self.buffer, "label": index % 3}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("batch_size", [2, 4, 31])
@pytest.mark.parametrize(
    "samples",
    [
        one_dict,
        one_array(lambda buffer, label: buffer[0]),
        one_array(lambda buffer, label: (buffer, label)),
        one_array(lambda buffer, label: {"x": [buffer.T], "label": label}),
        OneBuffer(),
    ],
)
def test_a_buffer_that_is_given_again_and_again_is_an_error(
    samples: Any, batch_size: int, world: int
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        own = OneBuffer() if isinstance(samples, OneBuffer) else samples
        return evaluate(lambda x: x["x"], own, {}, backend, batch_size, collate=lambda s: {"x": s})

    for error in run_ranks(world, rank):
        assert isinstance(error, RankError)
        assert re.search(r"sample [0-4] changed", str(error))


def test_an_element_that_is_yielded_again_counts_again() -> None:
    one, other = [1], [2]
    ((_, found, _),) = Stream(lambda: iter([one, one, one, other, other, one]), 0, 1, 8)
    assert found == [[1], [1], [1], [2], [2], [1]]


def test_a_used_iterator_is_an_error_and_not_an_empty_result() -> None:
    stream = (i for i in range(5))
    assert elements_of(values(read_on(1, lambda _: stream))) == {i: i for i in range(5)}
    (outcome,) = read_on(1, lambda _: stream)
    assert isinstance(outcome, UsageError)
    assert "no elements" in str(outcome)


def test_an_element_that_fails_is_named() -> None:
    def broken(_: Any = None) -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    (outcome,) = read_on(1, lambda _: broken())
    assert isinstance(outcome, SampleError)
    assert str(outcome) == "sample 3 of the stream could not be read: OSError: the disk is gone"
    assert isinstance(outcome.__cause__, OSError)
    outcomes = read_on(2, lambda _: ShardedStream(["good", "bad"], broken))
    assert "shard 'bad'" in str(outcomes[1])


def test_what_was_opened_is_closed_and_nothing_else() -> None:
    class File(io.StringIO):
        def __init__(self) -> None:
            super().__init__("a\nb\nc\n")
            files.append(self)

    files: list[File] = []
    read_on(1, lambda _: lambda: File(), limit=2)
    read_on(1, lambda _: ShardedStream([1, 2], lambda _: File()))
    assert [file.closed for file in files] == [True] * 3
    mine = File()
    read_on(1, lambda _: mine, limit=2)
    assert mine.readline() == "c\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShardedStream("a.tar", open), "shards has the type str; it must be a list"),
        (lambda: ShardedStream({"a", "b"}, open), "the type set; .* same order on every rank"),
        (lambda: ShardedStream(5, open), "shards has the type int; it must be a list of the"),  # type: ignore
        (lambda: ShardedStream([], open), "shards is empty"),
        (lambda: ShardedStream(["a", "b", "a"], open), "shards has 'a' twice"),
        (lambda: ShardedStream([4, 5, 4], open), "shards has '4' twice"),  # type: ignore
        (lambda: ShardedStream([("a", 0), ("a", 1), ("a", 0)], open), r"\('a', 0\) twice"),
        (lambda: ShardedStream([{"a": [0]}, {"a": [0]}], open), "twice"),
        (lambda: ShardedStream(["a"], 3), "open must be a function .*, not 3"),  # type: ignore
        (lambda: Stream([], 0, 1, 2, limit=0), "limit must be a whole number from 1 up, not 0"),
        (lambda: list(Stream(lambda: 3, 0, 1, 2)), "the function samples returned .* type int"),
        (
            lambda: list(Stream(ShardedStream(["a"], lambda _: 3), 0, 1, 2)),  # type: ignore
            "the function open returned a value of type int; it must return an iterable",
        ),
    ],
)
def test_what_is_no_stream_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_stream_has_no_length_or_no_index() -> None:
    streams = [
        iter("ab"),
        (i for i in "ab"),
        lambda: iter("ab"),
        {1, 2},
        io.StringIO("a"),
        zip("a"),
    ]
    assert all(map(is_stream, [*streams, ShardedStream(["a"], list)]))
    assert not any(map(is_stream, [[1], (1,), {"a": 1}, np.zeros(3), "text", range(3), None, 7]))


def test_what_ranks_agree_on_beforehand_names_the_shards() -> None:
    one, other = (ShardedStream(names, list) for names in (["a", "b", "c"], ["a", "d", "c"]))
    settings = [Stream(stream, 0, 1, 2).settings for stream in (one, other)]
    assert settings[0].startswith("3 shards")
    assert settings[0] != settings[1]


def test_a_data_set_whose_steps_can_not_be_seen_is_not_split() -> None:
    class Renamed:
        num_shards = 2

        def shard(self, num_shards: int, index: int) -> list[int]:
            return [index]

    with pytest.raises(UsageError, match="Renamed"):
        ShardedStream.of(Renamed())
