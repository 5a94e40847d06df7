"""Worlds whose ranks are threads of one process."""

from __future__ import annotations

import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from disteval.worlds.launchers import Launcher, register_launcher
from disteval.worlds.rank import serve


@register_launcher
class ThreadsLauncher(Launcher):
    """Every rank is a thread of the leader's process.

    A thread can't be ended: one that hangs stays until the process ends.
    """

    name = "threads"
    own_processes = False

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Start the threads; the environment is the process's and stays as it is."""
        channels = {}
        for rank in range(world_size):
            channels[rank], theirs = Pipe()
            thread = threading.Thread(target=_serve, args=(directory, rank, theirs), daemon=True)
            self._threads.append(thread)
            thread.start()
        return channels

    def ended(self) -> dict[int, str]:
        """Nothing: threads do not end by themselves."""
        return {}

    def wait(self, seconds: float) -> bool:
        """Wait until every thread has left its group."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def how_lost(self, rank: int) -> str:
        """Say that it was its thread that ended."""
        return "its thread ended"

    def bury(self, pids: list[int]) -> None:
        """Nothing to do: a thread ends when its channel to the leader closes."""


def _serve(directory: Path, rank: int, channel: Connection) -> None:
    with channel:  # the leader is to notice also a thread that sys.exit ends
        serve(directory, rank, channel)
