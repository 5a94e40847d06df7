"""Threads that read ahead keep the order, and read no more than a few batches ahead."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest
from disteval.data.batching import Batch, Picked, WholeBatches
from disteval.data.loading import load_ahead


def read(picked: Picked) -> Batch:
    return Batch(picked.indices, picked.indices * 2, picked.indices * 2, picked.rows)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_the_order_of_the_plan(workers: int) -> None:
    plan = WholeBatches(1003, 2, 1, 10, 10)
    with closing(load_ahead(plan, read, workers)) as batches:
        found = [batch.filled.tolist() for batch in batches]
    assert found == [(picked.indices * 2).tolist() for picked in plan]
    assert not [one for one in threading.enumerate() if one.name.startswith("disteval-loading")]


def test_few_batches_are_read_ahead_and_none_after_the_end() -> None:
    begun: list[int] = []

    def recording(picked: Picked) -> Batch:
        begun.append(int(picked.indices[0]))
        return read(picked)

    with closing(load_ahead(WholeBatches(10**6, 1, 0, 10, 10), recording, 2)) as batches:
        for _ in range(5):
            next(batches)
            assert len(begun) <= 5 + 2 * 2
    assert len(begun) <= 5 + 2 * 2


def test_an_error_of_a_thread_is_raised_in_its_turn() -> None:
    def failing(picked: Picked) -> Batch:
        if 25 in picked.indices:
            raise ValueError("no sample 25")
        return read(picked)

    found = []
    batches = load_ahead(WholeBatches(100, 1, 0, 10, 10), failing, 2)
    with closing(batches), pytest.raises(ValueError, match="no sample 25"):
        found += [batch.ids for batch in batches]
        found.append(np.zeros(0, np.int64))
    assert not [one for one in threading.enumerate() if one.name.startswith("disteval-loading")]
