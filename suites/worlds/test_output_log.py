"""What ranks print is logged where that was asked for, whole and line by line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from disteval.worlds import World

SOCKETS = "suites.mutants.sockets:Sockets"  # real processes, and no library to import
LINES, LONG = 3_000, "x" * 1_000


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of what ranks print, put back afterwards."""
    found = logging.getLogger("disteval.worlds.ranks")
    before = found.level
    yield found
    found.setLevel(before)


def print_lines(backend: Any) -> None:
    for number in range(LINES):
        print(f"line {number} {LONG}")


def test_much_that_is_printed_at_once_comes_whole(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.setLevel(logging.INFO)
    with World(SOCKETS, 1) as world:
        world.run(print_lines)
    told = [record.message for record in caplog.records if record.name == logger.name]
    assert len(told) == LINES
    assert all(line == f"[rank 0] line {number} {LONG}" for number, line in enumerate(told))
