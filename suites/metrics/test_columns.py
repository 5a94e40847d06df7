"""Entries come back from their columns as they were, types and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval.conformance.fingerprint import digest
from disteval.metrics.columns import pack, unpack
from hypothesis import example, given
from hypothesis import strategies as st

_scalars: tuple[st.SearchStrategy[Any], ...] = (
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.binary(max_size=3),
    st.text(max_size=3),
    st.none(),
    st.floats(width=32).map(np.float32),
    st.integers(0, 255).map(np.uint8),
    st.lists(st.floats(), max_size=2).map(np.array),
)
_rows = st.sampled_from(_scalars).flatmap(st.lists)
_tuples = st.tuples(*[st.sampled_from(_scalars)] * 2).flatmap(lambda s: st.lists(st.tuples(*s)))


@example([np.ones(2), np.ones(3)])
@example([np.array([None])])
@example([1 << 70])
@example([(1, 1 << 70)])
@given(_rows | _tuples | st.lists(st.one_of(*_scalars)))
def test_entries_come_back_to_the_last_bit(entries: list[Any]) -> None:
    found = unpack(*pack(entries))
    assert [*map(digest, found)] == [*map(digest, entries)]


@pytest.mark.parametrize(
    "entries",
    [
        [1, 2],
        [-(1 << 63), (1 << 63) - 1],
        [0.5, 1.5],
        [True, False],
        [np.float32(1)],
        [np.ones(2)],
        [(1, 2.0)],
    ],
)
def test_entries_of_one_type_travel_as_arrays(entries: list[Any]) -> None:
    form, packed = pack(entries)
    for column in [packed] if form != "tuple" else [column for _, column in packed]:
        assert isinstance(column, np.ndarray)


def test_an_array_that_comes_back_does_not_hold_on_to_the_others() -> None:
    form, packed = pack([np.ones(2), np.zeros(2)])
    for array in unpack(form, packed):
        assert not np.shares_memory(array, packed)
