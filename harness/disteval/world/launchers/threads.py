"""Ranks that are threads of the leader's process."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from disteval.host import RANK_THREAD
from disteval.world.launchers.base import Launcher
from disteval.world.postmortem import End
from disteval.world.rank import serve


class ThreadsLauncher(Launcher):
    """Starts every rank as a thread of the leader's process.

    A thread can't be ended from outside: one that hangs stays until the process ends.
    """

    name = "threads"
    own_processes = on_this_host = False

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start the threads; each may use as many cores as the process."""
        connections, self._threads = [], []
        for rank in range(world_size):
            ours, theirs = Pipe()
            connections.append(ours)
            thread = threading.Thread(
                target=_serve, name=RANK_THREAD, args=(directory, rank, theirs), daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return connections

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """Say that the rank's thread ended, once it has; nothing ends it from outside."""
        self._threads[rank].join(max(0.0, seconds))
        if self._threads[rank].is_alive():
            return ""
        end = End("its thread ended")
        end.by_itself = True
        return end


def _serve(directory: Path, rank: int, connection: Connection) -> None:
    with connection:  # the leader should notice also a thread that sys.exit ends
        serve(directory, rank, connection)
