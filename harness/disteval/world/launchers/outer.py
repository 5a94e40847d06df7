"""Ranks that somebody else has started, with ``mpirun``, ``torchrun``, ``srun`` or such."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from disteval.world.address import Hosts
from disteval.world.bootstrap import Bootstrap
from disteval.world.channel.link import read_address
from disteval.world.control_directory import ControlDirectory
from disteval.world.environment import OuterWorld
from disteval.world.launchers.threads import ThreadsLauncher
from disteval.world.rank_process import how_child_ended

MEETING_SECONDS = 60.0


class OuterLauncher(ThreadsLauncher):
    """Starts no process: this process leads, and a thread of it is rank 0."""

    name = "outer"
    attached: ClassVar[bool] = True

    def __init__(self, outer: OuterWorld, interface: str | None = None) -> None:
        super().__init__()
        self._bootstrap = Bootstrap(outer, interface)

    def directory(self) -> ControlDirectory:
        """Create the control directory, on one host where the other ranks look for it."""
        return self._bootstrap.directory()

    def prepare(self, world_size: int) -> Hosts:
        """Return where the ranks meet."""
        if self.elastic:
            self._bootstrap.accept_losses()
        return self._bootstrap.hosts()

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start the thread of rank 0; the other ranks connect when they know where."""
        self._directory = directory
        self._bootstrap.announce(read_address(directory), MEETING_SECONDS + world_size)
        return super().start(directory, 1, threads)

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """See `Launcher.how_ended`; it is known of ranks that share the leader's directory."""
        if rank == 0:
            return super().how_ended(rank, seconds)
        return how_child_ended(self._directory, rank, seconds) if self.elastic else ""
