"""The world of a benchmark, and how asv learns that a backend is not available here."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from typing import Any

from disteval.contract import No
from disteval.errors import LibraryMissingError
from disteval.registry import get_backend_class
from disteval.world import World

SECONDS = 120.0
"""Seconds without progress after which a world ends; a machine that runs benchmarks is busy."""


def require_backend(name: str, world_size: int) -> None:
    """Tell asv to skip the row if the backend or the world size is not available here.

    Raises:
        NotImplementedError: Says why; asv reports n/a.
    """
    try:
        cls = get_backend_class(name)
        cls()  # some need more than their library, such as a GPU
    except LibraryMissingError as error:
        raise NotImplementedError(str(error)) from error
    multi = cls.capabilities.multi_rank
    if world_size > 1 and not multi:
        reason = multi.reason if isinstance(multi, No) else "it does not say why"
        raise NotImplementedError(f"{name} can't run with world size {world_size}: {reason}")


def require_module(name: str) -> None:
    """Tell asv to skip the row if a module is not installed.

    Raises:
        NotImplementedError: Says which; asv reports n/a.
    """
    if importlib.util.find_spec(name) is None:
        raise NotImplementedError(f"{name} is not installed")


def start_world(backend: str, world_size: int) -> World:
    """Start ranks, or tell asv to skip the row.

    Raises:
        NotImplementedError: The backend can't be used here; asv reports n/a.
        WorldError: It can, but its ranks did not start; asv reports a failure.
    """
    require_backend(backend, world_size)
    return World(backend, world_size, timeout=SECONDS)


class InWorld:
    """A benchmark in a world that is started before the measurement.

    A subclass calls `start` in its ``setup``.
    """

    timeout = 300.0
    world: World | None = None

    def start(self, backend: str, world_size: int) -> None:
        """Start the world; see `start_world`."""
        self.world = start_world(backend, world_size)

    def run(self, function: Any, argument: Any) -> list[Any]:
        """Run ``function(backend, argument)`` on every rank and return the results by rank."""
        assert self.world is not None, "setup starts the world"
        return self.world.run(function, *[argument] * self.world.world_size)

    def teardown(self, *_parameters: object) -> None:
        """End the world; asv calls this after a skipped setup, too."""
        if self.world is not None:
            self.world.close()


def median_of(times: Sequence[Sequence[float]]) -> float:
    """Return the median of the ranks' medians."""
    return statistics.median(statistics.median(rank) for rank in times)
