"""Batches that can't be padded are refused in a sentence, before any rank waits for another."""

import sys
from itertools import islice
from typing import Any

import numpy as np
import pytest
from disteval import LibraryMissingError, UsageError
from disteval.padding import in_step, pad_shard_unpad, with_infinite_padding

ROWS = np.zeros(3)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (None, "None"),
        ([], "no batch"),
        ([{"image": ROWS, "mask": ROWS}], "'mask'"),
        ([ROWS], "ndarray"),
        ([(ROWS, ROWS)], "tuple"),
        ([{}], r"\{\}"),
        ([{"image": 1}], "'image': 1"),
        ([{"image": ROWS, "label": ROWS[:2]}], r"label.*leading axes \[2, 3\]"),
    ],
)
def test_batches_of_another_kind_are_refused(batches: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(islice(with_infinite_padding(batches), 1))


def test_an_example_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"like.*3"):
        with_infinite_padding([], like=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [{"image": ROWS}, (ROWS, ROWS)])
def test_batches_without_a_mask_are_not_counted_in_step(batch: Any) -> None:
    with pytest.raises(UsageError, match="'mask'"):
        list(in_step([batch], "non_dist"))


def test_in_step_takes_a_backend_by_name() -> None:
    batches = with_infinite_padding([{"image": ROWS}] * 2)
    assert len(list(in_step(batches, "non_dist"))) == 2


def test_samples_after_a_batch_without_rows_are_not_lost() -> None:
    batches = [{"image": ROWS[:rows]} for rows in (2, 0, 0, 1)]
    taken = in_step(with_infinite_padding(batches), "non_dist")
    assert [len(batch["image"]) for batch in taken] == [2, 1]


def test_what_is_no_function_is_refused_before_the_first_batch() -> None:
    with pytest.raises(UsageError, match=r"fn.*None"):
        pad_shard_unpad(None)  # type: ignore[arg-type]


def test_without_jax_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(LibraryMissingError, match=r"'jax'.*\[jax\]"):
        pad_shard_unpad(len)(ROWS)
