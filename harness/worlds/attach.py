"""Worlds whose processes somebody else has started, with ``mpirun`` or ``torchrun``."""

from __future__ import annotations

import threading
from pathlib import Path

from harness.contract import BaseDistBackend
from harness.registry import get_backend_class
from harness.worlds.launchers import Launcher
from harness.worlds.outer import OuterWorld
from harness.worlds.rank import serve


class OuterLauncher(Launcher):
    """Starts nothing: the ranks are there. This process leads, and is rank 0 in a thread.

    Args:
        outer: The world that this process leads.
    """

    name = "outer"

    def __init__(self, outer: OuterWorld) -> None:
        self._outer = outer
        self._rank_0: threading.Thread | None = None

    def directory(self) -> Path:
        """Create the control directory where the other ranks look for it."""
        return self._outer.create_control_directory()

    def start(self, directory: Path, world_size: int, environment: dict[str, str]) -> None:
        """Let this process take part; the other ranks come by themselves."""
        self._rank_0 = threading.Thread(
            target=serve, args=(directory, 0), kwargs={"leads": True}, daemon=True
        )
        self._rank_0.start()

    def ended(self) -> dict[int, int]:
        """Nothing: the outer launcher watches its processes."""
        return {}

    def wait(self, seconds: float) -> bool:
        """Wait until this process's own rank has left its group."""
        if self._rank_0 is not None:
            self._rank_0.join(seconds)
        return self._rank_0 is None or not self._rank_0.is_alive()

    def bury(self, pids: list[int]) -> None:
        """Nothing to do: ranks end by themselves when their channel to the leader closes."""


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
