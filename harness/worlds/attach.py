"""Worlds whose processes somebody else has started, with ``mpirun`` or ``torchrun``."""

from __future__ import annotations

from pathlib import Path

from harness.contract import BaseDistBackend
from harness.registry import get_backend_class
from harness.worlds.launchers import ThreadsLauncher
from harness.worlds.outer import OuterWorld
from harness.worlds.rank import serve


class OuterLauncher(ThreadsLauncher):
    """Starts nothing: the ranks are there. This process leads, and is rank 0 in a thread.

    Args:
        outer: The world that this process leads.
    """

    name = "outer"

    def __init__(self, outer: OuterWorld) -> None:
        super().__init__()
        self._outer = outer

    def directory(self) -> Path:
        """Create the control directory where the other ranks look for it."""
        return self._outer.create_control_directory()

    def start(self, directory: Path, world_size: int, environment: dict[str, str]) -> None:
        """Let this process take part; the other ranks come by themselves."""
        super().start(directory, 1, environment)


def join_outer_world(outer: OuterWorld, backend: str | type[BaseDistBackend]) -> int:
    """Serve as a rank of the world that rank 0 of the same job leads.

    Args:
        outer: The world that this process is in.
        backend: The backend that the leader will use.

    Returns:
        The exit status with which the leader wants this process to end.

    Raises:
        HarnessError: The backend can't be used here, or rank 0 did not appear in time.
    """
    if isinstance(backend, str):
        # Importing an MPI library joins the job, for which each rank waits for the others: the
        # leader does it before it takes the lead.
        get_backend_class(backend)
    return serve(outer.control_directory(), outer.rank)
