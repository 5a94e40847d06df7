"""Samples become batches by field, and what can't be stacked stays a list."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import UsageError
from disteval.data.batching import Picked
from disteval.data.collate import collate, first_rows
from disteval.data.fetching import IndexedReader
from disteval.errors import HarnessError, SampleError


class Pair(NamedTuple):
    x: Any
    y: Any


def test_numbers_and_arrays_are_stacked_by_field() -> None:
    batch = collate([{"x": np.full(3, i), "y": (i, float(i)), "name": str(i)} for i in range(4)])
    assert batch["x"].tolist() == [[i] * 3 for i in range(4)]
    assert [part.dtype for part in batch["y"]] == [np.int64, np.float64]
    assert batch["name"] == ["0", "1", "2", "3"]
    pair = collate([Pair(np.zeros(2), True), Pair(np.ones(2), False)])
    assert isinstance(pair, Pair)
    assert pair.y.dtype == np.bool_


def test_ragged_fields_are_lists_of_arrays() -> None:
    batch = collate([{"ids": np.arange(n), "tokens": list(range(n))} for n in (2, 5, 1)])
    assert [len(row) for row in batch["ids"]] == [2, 5, 1]
    assert [row.tolist() for row in batch["tokens"]] == [[0, 1], [0, 1, 2, 3, 4], [0]]
    assert all(isinstance(row, np.ndarray) for row in batch["ids"] + batch["tokens"])


def test_a_field_has_one_type_whatever_its_rows_are() -> None:
    rows = collate([[], [1, 2], [3]])
    assert [row.dtype for row in rows] == [np.int64] * 3
    assert collate([[], []]).shape == (2, 0)
    assert [row.dtype for row in collate([[1], [0.5, 1.5]])] == [np.float64] * 2
    mixed = collate([1, np.float32(0.5), True])
    assert isinstance(mixed, np.ndarray)
    assert mixed.tolist() == [1.0, 0.5, 1.0]
    assert collate([[1], ["a", "b"]]) == [[1], ["a", "b"]]


def test_other_values_stay_as_they_are() -> None:
    for values in (["a", "bc"], [None, 1], [b"a", b"b"], [{1}, {2}], [["a"], ["b", "c"]], [2**70]):
        assert collate(values) == values


@pytest.mark.parametrize(
    "samples", [[2**63 + 5, -7], [[2**63 + 5], [-7]], [[2**63 + 5, -7], [2**63 + 5, 3]]]
)
def test_integers_that_no_dtype_holds_together_keep_their_digits(samples: list[Any]) -> None:
    assert np.array(samples).dtype == np.float64  # which has no digit for the 5
    assert collate(samples) == samples


def test_samples_with_other_fields_are_refused() -> None:
    with pytest.raises(UsageError, match=r"keys \['a'\].* keys \['b'\]"):
        collate([{"a": 1}, {"b": 1}])
    with pytest.raises(UsageError, match=r"\['a'\].* 1 .* 2 "):
        collate([{"a": (1,)}, {"a": (1, 2)}])
    with pytest.raises(UsageError, match="type int"):
        collate([{"a": 1}, 3])


def test_the_rows_that_count_are_cut_from_the_batch_that_is_padded() -> None:
    def longest(samples: list[Any]) -> dict[str, Any]:
        width = max(map(len, samples))
        return {"x": np.array([[*row, *[0] * (width - len(row))] for row in samples])}

    samples = [[1], [1, 2], [1, 2, 3, 4]]
    batch = IndexedReader(samples, longest)(Picked(np.array([0, 1, 2]), 2, 5))
    assert batch.filled["x"].shape == (5, 4)
    assert batch.filled["x"][3:].tolist() == [[1, 2, 3, 4]] * 2
    assert batch.real["x"].shape == (2, 4)
    assert batch.ids.tolist() == [0, 1]


def test_a_batch_without_rows_is_made_again_of_the_samples_that_count() -> None:
    batch = IndexedReader([[1], [2, 3], [4]], lambda some: np.concatenate(some))(
        Picked(np.array([0, 1, 2]), 2, 3)
    )
    assert batch.filled.tolist() == [1, 2, 3, 4]
    assert batch.real.tolist() == [1, 2, 3]
    assert IndexedReader([1], np.array)(Picked(np.array([0]), 0, 1)).real is None
    with pytest.raises(ValueError, match="3 rows"):
        first_rows(np.zeros(4), 3, 2)


def test_a_collate_that_fails_on_uneven_fields_names_them_and_their_shapes() -> None:
    samples = [{"x": 1, "pair": (np.zeros(2), np.zeros((n, 3)))} for n in (4, 4, 5)]
    message = (
        r"^sample 0 could not be collated with 1, 2: ValueError: .*; the field \['pair'\]\[1\] has "
        r"the shapes \(4, 3\) and \(5, 3\) in this batch; let collate pad to one$"
    )
    reader = IndexedReader(samples, lambda some: np.stack([one["pair"][1] for one in some]))
    with pytest.raises(SampleError, match=message):
        reader(Picked(np.arange(3), 3, 3))
    with pytest.raises(SampleError, match=r"ValueError: no$"):
        IndexedReader([1, {"x": 2}], _no)(Picked(np.arange(2), 2, 2))


def _no(samples: list[Any]) -> Any:
    raise ValueError("no")


def test_a_collate_may_take_fields_out_of_dicts() -> None:
    def popping(samples: list[dict[str, int]]) -> Any:
        labels = np.array([sample.pop("label") for sample in samples])
        return np.array([sample["x"] for sample in samples]), labels

    samples = [{"x": i, "label": 2 * i} for i in range(3)]
    batch = IndexedReader(samples, popping)(Picked(np.array([0, 2]), 2, 5))
    assert batch.filled[1].tolist() == [0, 4, 4, 4, 4]
    assert batch.real[1].tolist() == [0, 4]


def test_a_collate_that_moves_samples_is_refused() -> None:
    texts = [[1], [2, 2, 2], [3, 3], [4, 4, 4]]

    def in_place(some: list[Any]) -> Any:
        some.sort(key=len, reverse=True)
        return [len(text) for text in some]

    def in_a_copy(some: list[Any]) -> Any:
        ordered = sorted(some, key=len)
        return {"lengths": np.array([len(text) for text in ordered]), "text": ordered}

    def pairs(some: list[Any]) -> Any:
        ordered = sorted(some, key=len, reverse=True)
        return np.array([len(text) for text in ordered]), {"text": ordered}

    for moving, rows in ((in_place, 4), (in_a_copy, 6), (pairs, 6)):
        numbers = np.array([0, 1, 3, 2])
        with pytest.raises(HarnessError, match=r"collate.*order"):
            IndexedReader(texts, moving)(Picked(numbers, 4, rows))

    def own(some: list[Any]) -> Any:  # of which repeats may differ, and the list is the function's
        some[:] = [(len(text), place % 3) for place, text in enumerate(some)]
        return np.array(some)

    assert IndexedReader(texts, own)(Picked(np.arange(4), 4, 6)).real[:, 0].tolist() == [1, 3, 2, 3]


def test_getitems_returns_a_list_of_one_sample_for_each_index() -> None:
    class Columns(list):
        def __getitems__(self, indices: list[int]) -> Any:
            return {"x": [self[index] for index in indices]}

    class Short(list):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in set(indices)]

    picked = Picked(np.array([1, 1]), 2, 2)
    assert IndexedReader(Columns([5, 6]))(picked).filled.tolist() == [6, 6]
    with pytest.raises(UsageError, match=r"Short.* 2 samples"):
        IndexedReader(Short([5, 6]))(picked)


@pytest.mark.parametrize("many", [True, False])
def test_a_sample_that_raises_is_named(many: bool) -> None:
    class Samples:
        def __getitem__(self, index: int) -> int:
            return 10 // (index - 3)

    class Many(Samples):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [self[index] for index in indices]

    reader = IndexedReader(Many() if many else Samples())
    assert reader(Picked(np.array([4, 5]), 2, 2)).filled.tolist() == [10, 5]
    with pytest.raises(SampleError, match="sample 3") as found:
        reader(Picked(np.array([4, 3]), 2, 2))
    assert isinstance(found.value.__cause__, ZeroDivisionError)
