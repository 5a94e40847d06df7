"""Waiting for every rank of a new world to report."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener

from disteval.worlds import control

_POLL_SECONDS = 0.1


class Muster:
    """The ranks that have reported so far.

    Args:
        listener: Where they report.
        key: What they have to know.
        world_size: How many there are to be.
        inside: Channels to the ranks that live in this process, which are there already.

    Attributes:
        connections: The channel to each rank that has reported.
        members: What each said of itself.
    """

    def __init__(
        self, listener: Listener, key: bytes, world_size: int, inside: dict[int, Connection]
    ) -> None:
        self.connections: dict[int, Connection] = inside
        self.members: dict[int, control.Hello] = {}
        self._listener = listener
        self._key = key
        self._world_size = world_size
        self._stopped = False

    def wait(self, give_up: Callable[[], bool]) -> bool:
        """Wait until all have reported, or ``give_up()`` says so; True when all have."""
        for rank, connection in self.connections.items():
            self.members[rank] = control.receive(connection)
        # Listener.accept has no timeout, so it waits in a thread of its own.
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        while thread.is_alive() and not give_up():
            thread.join(_POLL_SECONDS)
        if thread.is_alive():
            self._stopped = True
            # Wakes the thread out of accept.
            socket.create_connection(self._listener.address, timeout=1).close()
            thread.join(1)
        return len(self.connections) == self._world_size

    def _accept(self) -> None:
        while len(self.connections) < self._world_size and not self._stopped:
            try:
                connection = control.accept(self._listener, self._key)
                hello = control.receive(connection)
            except (AuthenticationError, EOFError, OSError):
                continue  # not one of ours, or one that died; the deadline tells in the end
            self.members[hello.rank] = hello
            self.connections[hello.rank] = connection
