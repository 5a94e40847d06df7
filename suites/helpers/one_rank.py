"""The comparison of an evaluation in leases with that of one rank that has all samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from disteval import Leases, ledger

from suites.helpers.thread_world import run_ranks, values
from suites.metrics.cases import assert_same


def assert_as_on_one_rank(
    world: int, rank: Callable[[Any, Any], Any], *, folds: bool = False
) -> None:
    """Check that ranks with leases find, or refuse, what one static rank does.

    Args:
        world: The number of ranks.
        rank: Called on each rank with its backend and its leases; returns what was found, or the
            error as a text.
        folds: Whether the ledger adds up totals after every commit, where all are sums.
    """
    expected = values(run_ranks(1, lambda backend: rank(backend, None)))[0]
    with patch.object(ledger, "FOLD_BYTES", 0 if folds else ledger.FOLD_BYTES):
        outcomes = run_ranks(world, lambda backend: rank(backend, Leases()))
    for found in values(outcomes):
        if isinstance(expected, str):
            assert found == expected
        else:
            assert_same(found, expected)
