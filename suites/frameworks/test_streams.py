"""Streams of libraries: torch's iterable data sets and loaders, and those of Hugging Face."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from disteval import HarnessError, UsageError, evaluate, predict_all
from disteval.data import ShardedStream
from hypothesis import given
from hypothesis import strategies as st

from suites.data.test_streams import read_on
from suites.helpers.data import digest_of
from suites.helpers.needs import each, framework, needs
from suites.helpers.thread_world import assert_each_raised, run_ranks, values


def numbers_of(world: int, make: Callable[[], Any], field: str) -> list[int]:
    """Return a field of all elements of a stream, in order, read by ranks."""

    def rank(backend: Any) -> Any:
        return predict_all(lambda batch: np.asarray(batch[field]), make(), backend, 4)

    return [int(number) for number in values(run_ranks(world, rank))[0]]


def torch_stream() -> Any:
    torch = framework("torch")

    class Numbers(torch.utils.data.IterableDataset):  # type: ignore[name-defined,misc]
        def __len__(self) -> int:
            return 11

        def __iter__(self) -> Iterator[Any]:
            return ({"x": torch.full((3,), i), "y": i} for i in range(11))

    return Numbers()


@needs("torch")
def test_an_iterable_dataset_of_torch_is_a_stream() -> None:
    assert numbers_of(3, torch_stream, "y") == list(range(11))


@needs("torch")
def test_a_loader_that_makes_batches_is_refused() -> None:
    torch = framework("torch")
    with pytest.raises(HarnessError, match=r"DataLoader.* dataset"):
        evaluate(len, torch.utils.data.DataLoader(torch_stream(), batch_size=2), {}, "non_dist")
    one_by_one = torch.utils.data.DataLoader(torch_stream(), batch_size=None)
    assert numbers_of(2, lambda: one_by_one, "y") == list(range(11))


@needs("torch")
def test_tensors_have_the_digest_of_their_content() -> None:
    torch = framework("torch")
    base = torch.arange(6.0)
    alike: list[Callable[[], Any]] = [
        base.clone,
        lambda: torch.arange(12.0).reshape(6, 2)[:, 0] / 2,
        lambda: base.clone().requires_grad_(),
        lambda: torch.arange(20.0)[:6],
    ]
    assert len({digest_of(make()) for make in alike}) == 1
    different = [
        base, base.double(), base.reshape(2, 3), base.flip(0), base.bfloat16(), base.half(),
        base.to_sparse(), torch.complex(base, base), torch.complex(base, base).conj(),
        torch.tensor(1.0), torch.tensor(1), torch.tensor(1.0).bfloat16(), base.numpy(),
    ]  # fmt: skip
    assert len({digest_of(tensor) for tensor in different}) == len(different)
    large = torch.arange(10_000).bfloat16()
    assert digest_of(large) == digest_of(large.clone()) != digest_of(large.flip(0))


def different_arrays(library: str) -> list[Any]:
    """Make arrays of a library that are all different."""
    if library == "jax":
        jnp, large = framework("jax.numpy"), framework("jax.numpy").arange(9000.0)
        half = jnp.arange(3, dtype=jnp.bfloat16)
        return [jnp.arange(3), jnp.arange(3.0), half, large, large[::-1]]
    tf = framework("tensorflow")
    ragged = [tf.ragged.constant(rows) for rows in ([[1], [2, 3]], [[1, 2], [3]], [[1], [2, 4]])]
    sparse = [tf.sparse.from_dense(row) for row in ([1, 0], [2, 0])]
    half = tf.constant([1.0, 2.0], tf.bfloat16)
    texts = [tf.constant("a"), tf.constant("b")]
    return [tf.constant([1.0, 2.0]), tf.constant([1.0, 3.0]), half, *texts, *ragged, *sparse]


@pytest.mark.parametrize("library", each("jax", "tensorflow"))
def test_arrays_of_other_libraries_have_the_digest_of_their_content(library: str) -> None:
    found, again = ([*map(digest_of, different_arrays(library))] for _ in range(2))
    assert found == again
    assert len(set(found)) == len(found)


def hugging_face(shards: int) -> Any:
    """Return a stream with four rows in each shard."""
    rows = range(4 * shards)
    columns = {"text": [f"shard {row // 4}" for row in rows], "x": list(rows)}
    dataset = framework("datasets").Dataset.from_dict(columns)
    return dataset.to_iterable_dataset(num_shards=shards)


@needs("datasets")
def test_a_hugging_face_stream_is_read_whole_or_by_shards() -> None:
    for make in (lambda: hugging_face(3), lambda: ShardedStream.of(hugging_face(3))):
        assert numbers_of(2, make, "x") == list(range(12))


@needs("datasets")
def test_a_hugging_face_stream_that_is_split_or_shuffled_is_an_error_on_every_rank() -> None:
    split = framework("datasets.distributed").split_dataset_by_node
    wrong: list[Callable[[int], Any]] = [
        lambda rank: split(hugging_face(4), rank, 2),
        lambda rank: split(hugging_face(3), rank, 2),
        lambda rank: hugging_face(4).shuffle(),
    ]
    for samples_of in wrong:
        assert_each_raised(read_on(2, samples_of), UsageError, "split_dataset_by_node")
    assert values(read_on(2, lambda _: hugging_face(4).shuffle(seed=1))) == [16] * 2


def add_index(row: Any, index: int) -> Any:
    return {**row, "index": index}


STEPS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "itself": (lambda d: d, True),
    "map": (lambda d: d.map(lambda row: {**row, "twice": 2 * row["x"]}), True),
    "filter": (lambda d: d.filter(lambda row: row["x"] % 2), True),
    "select_columns": (lambda d: d.select_columns(["x"]), True),
    "rename_column": (lambda d: d.rename_column("x", "z"), True),
    "with_format": (lambda d: d.with_format("numpy"), True),
    "take": (lambda d: d.take(5), False),
    "skip": (lambda d: d.skip(5), False),
    "shuffle": (lambda d: d.shuffle(seed=1), False),
    "repeat": (lambda d: d.repeat(2), False),
    "batch": (lambda d: d.batch(2), False),
    "map with indices": (lambda d: d.map(add_index, with_indices=True), False),
}


@needs("datasets")
@pytest.mark.parametrize("name", STEPS)
def test_shards_are_taken_only_where_they_hold_the_elements_of_the_whole(name: str) -> None:
    step, same = STEPS[name]
    dataset = step(hugging_face(3))
    if same:
        assert list(map(digest_of, ShardedStream.of(dataset))) == list(map(digest_of, dataset))
    else:
        with pytest.raises(UsageError, match="shards"):
            ShardedStream.of(dataset)


@needs("datasets")
def test_what_has_no_shards_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\blist\b"):
        ShardedStream.of([1])
    split = framework("datasets.distributed").split_dataset_by_node(hugging_face(2), 0, 2)
    with pytest.raises(UsageError, match="split_dataset_by_node"):
        ShardedStream.of(split)


@needs("datasets")
@given(st.integers(1, 4), st.integers(1, 4))
def test_concatenated_streams_have_the_shards_of_both(one: int, other: int) -> None:
    datasets = framework("datasets")
    both = datasets.concatenate_datasets([hugging_face(one), hugging_face(other)])
    assert list(ShardedStream.of(both)) == list(both)
    assert len(ShardedStream.of(both).shards) == one + other
