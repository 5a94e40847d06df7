"""The inbox in which a rank receives the messages of its leader."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.worlds.channel.messages import Dismissal, receive

_MAX_WAITING = 16
"""Messages that may wait for the rank; a leader sends the next order after the reply."""


class Inbox:
    """The inbox of a rank that is a thread of its leader's process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message; None if no message came in time, a dismissal if none can."""
        try:
            if not self._connection.poll(timeout if timeout is None else max(timeout, 0)):
                return None
            return receive(self._connection)
        except (EOFError, OSError):
            return Dismissal(1)


class WatchedInbox(Inbox):
    """The inbox of a rank whose process ends as soon as the leader is gone, even when it hangs.

    It then removes the control directory, which a killed leader could not do.
    """

    def __init__(self, connection: Connection, directory: Path) -> None:
        super().__init__(connection)
        self._directory = directory
        self._messages: queue.Queue[Any] = queue.Queue(_MAX_WAITING)
        threading.Thread(target=self._watch, daemon=True).start()

    def get(self, timeout: float | None = None) -> Any:
        """See `Inbox.get`."""
        try:
            return self._messages.get(timeout=timeout if timeout is None else max(timeout, 0))
        except queue.Empty:
            return None

    def _watch(self) -> None:
        """Receive messages in a thread of its own, to notice at once that the leader is gone."""
        try:
            while True:
                message = receive(self._connection)
                # put() would wait for room, and could not notice meanwhile that the leader is gone.
                self._messages.put_nowait(message)
                if isinstance(message, Dismissal):
                    return
        except (EOFError, OSError, queue.Full):
            shutil.rmtree(self._directory, ignore_errors=True)
            os._exit(1)
