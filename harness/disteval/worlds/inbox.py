"""What the leader sends to a rank, as the rank takes it."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.worlds import control

_UNTAKEN = 16
"""Messages that a rank may leave untaken; a leader in lock step sends the next after the answer."""


class Inbox:
    """The inbox of a rank that shares its leader's process, and so can't outlive it.

    Args:
        connection: The channel to the leader.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message: None when none came in time, a dismissal when none can come.

        Args:
            timeout: Seconds; None waits for as long as the leader is there.
        """
        try:
            if not self._connection.poll(timeout if timeout is None else max(timeout, 0)):
                return None
            return control.receive(self._connection)
        except (EOFError, OSError):
            return control.Dismissal(1)


class WatchedInbox(Inbox):
    """The inbox of a rank whose process ends when the leader is gone, wherever it is stuck.

    Args:
        connection: The channel to the leader.
        directory: The control directory, which a lost leader may have had no time to remove.
    """

    def __init__(self, connection: Connection, directory: Path) -> None:
        super().__init__(connection)
        self._directory = directory
        self._messages: queue.Queue[Any] = queue.Queue(_UNTAKEN)
        threading.Thread(target=self._watch, daemon=True).start()

    def get(self, timeout: float | None = None) -> Any:
        """See `Inbox.get`."""
        try:
            return self._messages.get(timeout=timeout if timeout is None else max(timeout, 0))
        except queue.Empty:
            return None

    def _watch(self) -> None:
        """Take messages off the wire in a thread of its own, to notice a lost leader at once."""
        try:
            while True:
                message = control.receive(self._connection)
                # Not put(): a thread that waits for room would not notice that the leader is gone.
                self._messages.put_nowait(message)
                if isinstance(message, control.Dismissal):
                    return
        except (EOFError, OSError, queue.Full):
            shutil.rmtree(self._directory, ignore_errors=True)
            os._exit(1)
