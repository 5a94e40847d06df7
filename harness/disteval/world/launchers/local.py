"""Ranks that are processes on the leader's host."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from disteval.contract import BaseDistBackend
from disteval.host import thread_variables
from disteval.world.environment import outside_environment
from disteval.world.launchers.base import ProcessLauncher, rank_command
from disteval.world.processes import find_servers


def prepare_ranks(preload: Sequence[str], world_size: int, threads: int | None) -> None:
    """Start the servers off which the ranks of a world will be forked, and do not wait for them.

    Args:
        preload: The modules that they import, see `LocalLauncher`.
        world_size: The number of ranks.
        threads: As for `World`.
    """
    find_servers(preload, outside_environment() | thread_variables(world_size, threads), world_size)


class LocalLauncher(ProcessLauncher):
    """Starts every rank as a process on the leader's host.

    On Linux ranks are forked off processes that have imported the backend's library before, which
    the leader keeps for its next worlds; elsewhere, and where that is not safe, each is started.

    Args:
        forks: Whether ranks are forked.
        preload: The modules that are imported before ranks are forked; None stands for those that
            the backend's class names.
    """

    name = "local"

    def __init__(self, *, forks: bool = True, preload: Sequence[str] | None = None) -> None:
        super().__init__()
        own = type(self).commands is LocalLauncher.commands  # else others are to be run
        self._forks, self._preload = forks and own, preload

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """See `Launcher.accept`; the backend says what may be imported before a fork."""
        if self._preload is None:
            self._preload = backend.preload

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """See `ProcessLauncher.start`; the ranks are forked off servers where that is safe."""
        variables = self.variables(world_size, threads)
        found = find_servers(self._preload or (), variables, world_size) if self._forks else None
        if found is None or not found.are_usable():
            return super().start(directory, world_size, threads)
        self._log = directory / "launcher.log"
        self.processes.fork(found, world_size, variables)
        return []

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return one command for each rank."""
        return [[*rank_command(directory), str(rank)] for rank in range(world_size)]
