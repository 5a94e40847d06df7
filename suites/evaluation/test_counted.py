"""The ids that a rank counted are all kept, and regular ones take no memory of their own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.data import Counted, certify, unpacked_ids

MANY = 300_000


def counted(ids: Any, batch_size: int = 256) -> Counted:
    found = Counted()
    for start in range(0, len(ids), batch_size):
        found.add(ids[start : start + batch_size])
    return found


def batches(size: int) -> Any:
    """Return what one of three ranks has if whole batches of consecutive ids are dealt in turn."""
    return np.arange(3 * MANY).reshape(-1, 3, size)[:, 1].ravel()


def progressions(draw: Any) -> Any:
    start, step = draw(st.integers(0, 2**41)), draw(st.integers(-2, 3))
    return start + step * np.arange(draw(st.integers(0, 9000)))


irregular = st.integers(0, 10_000).map(lambda n: np.random.default_rng(n).permutation(n))
regular = st.composite(progressions)()


@settings(max_examples=60)
@given(st.lists(regular | irregular, max_size=5), st.integers(1, 20_000))
def test_every_id_is_kept_in_order_and_certified(parts: list[Any], batch_size: int) -> None:
    ids = np.concatenate([np.zeros(0, np.int64), *parts])
    found = counted(ids, max(batch_size, len(ids) // 100))
    blocks, proof = found.sealed()
    assert np.array_equal(unpacked_ids(blocks), ids)
    assert unpacked_ids(blocks).dtype == np.int64
    assert proof[:2] == certify(ids)[:2]


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(np.arange(1, 3 * MANY, 3), id="strided"),
        pytest.param(np.arange(7, MANY + 7), id="contiguous"),
        pytest.param(batches(2), id="batches of 2"),
        pytest.param(batches(250), id="batches of 250"),
        pytest.param((5 << 40) + np.arange(MANY), id="a shard of a stream"),
        pytest.param(np.arange(MANY)[::-1], id="backwards"),
    ],
)
def test_regular_ids_take_less_than_a_tenth_of_a_byte_each(ids: Any) -> None:
    assert sum(map(len, counted(ids).sealed()[0])) < len(ids) / 10


def test_ids_that_go_on_with_an_earlier_run_stay_where_they_were_added() -> None:
    run, others = np.arange(2**15), np.random.default_rng(0).permutation(2**15)
    ids = np.concatenate([run, others, run + len(run)])
    assert np.array_equal(unpacked_ids(counted(ids).sealed()[0]), ids)


def test_irregular_ids_take_at_most_their_own_memory() -> None:
    ids = np.random.default_rng(0).permutation(MANY)
    assert sum(map(len, counted(ids).sealed()[0])) < 4.5 * MANY


def test_ids_are_copied_because_callers_reuse_their_memory() -> None:
    found, ids = Counted(), np.arange(4)
    found.add(ids)
    ids[:] = 9
    assert unpacked_ids(found.sealed()[0]).tolist() == [0, 1, 2, 3]
