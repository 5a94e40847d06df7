"""Samples become batches by field, and what can't be stacked stays a list."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import HarnessError, RankError, evaluate
from disteval.metrics import Mean


class Keeping:
    """A model that keeps its last batch, as it was filled up, and the part of it that counts."""

    filled: Any = None
    real: Any = None

    def __call__(self, batch: Any) -> Any:
        self.filled = batch
        while isinstance(batch, dict | tuple):
            batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        return np.zeros(len(batch))

    def update(self, outputs: Any, batch: Any) -> Any:
        self.real = batch
        return (outputs,)


def kept(samples: Any, collate: Any = None, batch_size: int = 0) -> Keeping:
    """Return what a model was given of samples that are one batch, or the last of several."""
    model = Keeping()
    evaluate(
        model, samples, {"zero": Mean()}, "non_dist", batch_size or len(samples),
        collate=collate, update=model.update,
    )  # fmt: skip
    return model


def collate(samples: list[Any]) -> Any:
    """Return the batch that is made of samples without a function of one's own."""
    return kept([(0, sample) for sample in samples]).real[1]


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


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"a": 1}, {"b": 1}], ("['a']", "['b']")),
        ([{"a": (1,)}, {"a": (1, 2)}], ("'a'", " 1 ", " 2 ")),
        ([{"a": 1}, 3], ("int",)),
    ],
)
def test_samples_with_other_fields_are_refused(samples: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(HarnessError) as caught:
        kept(samples)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_rows_that_count_are_cut_from_the_batch_that_is_padded() -> None:
    def longest(samples: list[Any]) -> dict[str, Any]:
        width = max(map(len, samples))
        return {"x": np.array([[*row, *[0] * (width - len(row))] for row in samples])}

    batch = kept([[1], [1, 2], [1, 2, 3, 4]], longest, 5)
    assert batch.filled["x"].shape == (5, 4)
    assert batch.real["x"].tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 4]]


def test_a_collate_that_fails_on_uneven_fields_names_them_and_their_shapes() -> None:
    samples = [{"x": 1, "pair": (np.zeros(2), np.zeros((n, 3)))} for n in (4, 4, 5)]
    with pytest.raises(RankError) as caught:
        kept(samples, lambda some: np.stack([one["pair"][1] for one in some]))
    for word in ("sample 0", "1, 2", "ValueError", "['pair'][1]", "(4, 3)", "(5, 3)"):
        assert word in str(caught.value)


def test_a_collate_may_take_fields_out_of_dicts() -> None:
    def popping(samples: list[dict[str, int]]) -> Any:
        labels = np.array([sample.pop("label") for sample in samples])
        return np.array([sample["x"] for sample in samples]), labels

    batch = kept([{"x": i, "label": 2 * i} for i in range(3)], popping, 5)
    assert len(batch.filled) == 5
    assert batch.real[1].tolist() == [0, 2, 4]


def test_a_collate_that_moves_samples_is_refused() -> None:
    texts = [[1], [2, 2, 2], [4, 4, 4], [3, 3]]

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
        with pytest.raises(HarnessError, match="order"):
            kept(texts, moving, rows)

    def own(some: list[Any]) -> Any:  # of which repeats may differ, and the list is the function's
        some[:] = [(len(text), place % 3) for place, text in enumerate(some)]
        return np.array(some)

    assert kept(texts, own, 6).real[:, 0].tolist() == [1, 3, 3, 2]


def test_getitems_returns_a_list_of_one_sample_for_each_index() -> None:
    class Columns(list):
        def __getitems__(self, indices: list[int]) -> Any:
            return {"x": [self[index] for index in indices]}

    class Short(list):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices[1:]]

    with pytest.raises(HarnessError, match=r"Short.* 2 "):
        kept(Short([5, 6]))
    assert kept(Columns([5, 6])).real.tolist() == [5, 6]


def test_a_sample_that_raises_is_named_where_many_are_fetched_at_once() -> None:
    class Many:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return 10 // (index - 3)

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [self[index] for index in indices]

    with pytest.raises(RankError, match=r"sample 3\b.*ZeroDivisionError"):
        kept(Many(), batch_size=2)
