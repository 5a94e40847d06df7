"""Every element of a stream is read once, and streams that differ between ranks are an error."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from disteval import HarnessError, RankError, UsageError, evaluate, predict_all
from disteval.data import ShardedStream
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks, values


def first_field(batch: Any) -> Any:
    """Return one row for each sample, whatever a sample is."""
    return next(iter(batch.values())) if isinstance(batch, dict) else batch


def read_on(world: int, samples_of: Callable[[int], Any], **settings: Any) -> list[Any]:
    """Return what each rank finds of its stream, or its error."""

    def rank(backend: ThreadsDist) -> Any:
        return evaluate(first_field, samples_of(backend.rank), {}, backend, 4, **settings).size

    return run_ranks(world, rank)


@pytest.mark.parametrize("world", [1, 3, 5])
def test_every_shard_is_read_to_its_end_by_one_rank(world: int) -> None:
    ended: list[int] = []

    def open_shard(shard: int) -> Iterator[int]:
        yield from range(20 + shard)
        ended.append(shard)

    found = read_on(world, lambda _: ShardedStream(range(7), open_shard))
    assert values(found) == [7 * 20 + 21] * world
    assert sorted(ended) == list(range(7))


DIFFERENT: list[tuple[Callable[[int], Any], tuple[str, ...]]] = [
    (lambda rank: range(10 - rank), ("9 on rank 1",)),
    (lambda rank: range(10 + 5 * rank), ("15 on rank 1",)),
    (lambda rank: [0, 1, 2, 3] if rank == 0 else [0, 2, 1, 3], ("element 1 ",)),
    # As split_dataset_by_node does:
    (lambda rank: itertools.islice(range(99), rank, None, 2), ("50 ", "49 ", "element 0 ")),
    (lambda rank: np.arange(6.0) + (rank == 1) * 1e-12, ("element 0 ",)),
    (lambda rank: [] if rank == 1 else [1], ("1 ", "0 on rank 1")),
    (lambda rank: [-1 if i == 5000 and rank else i for i in range(9000)], ("5000 to 5007",)),
]


@pytest.mark.parametrize(("samples_of", "words"), DIFFERENT)
@pytest.mark.parametrize("world", [2, 3])
def test_streams_that_differ_are_one_error_on_every_rank(
    samples_of: Callable[[int], Any], words: tuple[str, ...], world: int
) -> None:
    assert_each_raised(
        read_on(world, lambda rank: iter(samples_of(min(rank, 1)))), UsageError, *words
    )


def test_shards_that_differ_are_an_error_on_every_rank() -> None:
    def shards(rank: int) -> Any:
        return ShardedStream(["a", "b", "c"] if rank == 0 else ["b", "a", "c"], list)

    assert_each_raised(read_on(2, shards), UsageError, "from a to c", "from b to c")
    assert_each_raised(
        read_on(2, lambda rank: shards(0) if rank == 0 else iter("abc")), UsageError, "3 shards"
    )


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


class OneBufferAtOnce(OneBuffer):
    """The same, read as torch's ``Subset`` reads it, in views of that array."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(self[index]["x"][:], index % 3) for index in indices]


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
        OneBufferAtOnce(),
    ],
)
def test_a_buffer_that_is_given_again_and_again_is_an_error(
    samples: Any, batch_size: int, world: int
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        own = type(samples)() if isinstance(samples, OneBuffer) else samples
        return evaluate(lambda x: x["x"], own, {}, backend, batch_size, collate=lambda s: {"x": s})

    for error in run_ranks(world, rank):
        assert isinstance(error, RankError)
        assert re.search(r"sample [0-4] changed", str(error))


def test_fields_that_are_equal_in_a_batch_are_no_buffer() -> None:
    class Described(list[int]):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [{"x": self[index], "of": "all", "rows": [1, 2]} for index in indices]

    assert predict_all(lambda x: x["x"], Described([5, 6, 6]), "non_dist").tolist() == [5, 6, 6]


def test_an_element_that_is_yielded_again_counts_again() -> None:
    one, other = [1], [2]
    found = predict_all(lambda x: x, lambda: iter([one, one, one, other, other, one]), "non_dist")
    assert np.ravel(found).tolist() == [1, 1, 1, 2, 2, 1]


def test_a_used_iterator_is_an_error_and_not_an_empty_result() -> None:
    stream = (i for i in range(5))
    assert read_on(1, lambda _: stream) == [5]
    (outcome,) = read_on(1, lambda _: stream)
    assert isinstance(outcome, UsageError)


def test_an_element_of_a_shard_that_fails_is_named() -> None:
    def broken(_: Any) -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    assert_each_raised(
        read_on(2, lambda _: ShardedStream(["bad", "worse"], broken)),
        RankError,
        "sample 3 ",
        "'bad'",
    )


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


def size_of(samples: Any, **settings: Any) -> int:
    return evaluate(lambda x: x, samples, {}, "non_dist", 2, **settings).size


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ShardedStream("a.tar", open), ("shards", "str")),
        (lambda: ShardedStream({"a", "b"}, open), ("shards", "set")),
        (lambda: ShardedStream(5, open), ("shards", "int")),  # type: ignore
        (lambda: ShardedStream([], open), ("shards", "empty")),
        (lambda: ShardedStream(["a", "b", "a"], open), ("'a' twice",)),
        (lambda: ShardedStream([4, 5, 4], open), ("4 twice",)),  # type: ignore
        (lambda: ShardedStream([("a", 0), ("a", 1), ("a", 0)], open), ("('a', 0) twice",)),
        (lambda: ShardedStream([{"a": [0]}, {"a": [0]}], open), ("twice",)),
        (lambda: ShardedStream(["a", lambda: 3], open), ("shards", "lambda")),
        (lambda: ShardedStream(["a"], 3), ("open", "3")),  # type: ignore
        (lambda: size_of(iter([1]), limit=-1), ("limit", "-1")),
        (lambda: size_of(lambda: 3), ("samples", "int")),
        (lambda: size_of(ShardedStream(["a"], lambda _: 3)), ("open", "int")),  # type: ignore
    ],
)
def test_what_is_no_stream_is_refused(make: Callable[[], Any], words: tuple[str, ...]) -> None:
    with pytest.raises(HarnessError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "samples",
    [iter("ab"), (i for i in "ab"), lambda: iter("ab"), {1, 2}, io.StringIO("a\nb"), zip("ab")],
)
def test_what_has_no_index_is_a_stream(samples: Any) -> None:
    assert size_of(samples) == 2


def test_a_data_set_whose_steps_can_not_be_seen_is_not_split() -> None:
    class Renamed:
        num_shards = 2

        def shard(self, num_shards: int, index: int) -> list[int]:
            return [index]

    with pytest.raises(UsageError, match="Renamed"):
        ShardedStream.of(Renamed())
