"""The comparison of an evaluation in leases with that of one rank that has all samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suites.thread_world import run_ranks, values
from suites.unit.metrics.cases import assert_same


def assert_as_on_one_rank(world: int, rank: Callable[[Any, str], Any]) -> None:
    """Check that ranks with leases find, or refuse, what one static rank does.

    Args:
        world: The number of ranks.
        rank: Called on each rank with its backend and the schedule; returns what was found, or the
            error as a text.
    """
    expected = values(run_ranks(1, lambda backend: rank(backend, "static")))[0]
    for found in values(run_ranks(world, lambda backend: rank(backend, "leases"))):
        if isinstance(expected, str):
            assert found == expected
        else:
            assert_same(found, expected)
