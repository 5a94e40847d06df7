"""A connection of the lender to one rank, on which nothing waits."""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import struct
import termios
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

from disteval.errors import describe_error
from disteval.world.channel.messages import MAX_MESSAGE_BYTES

_READ_BYTES = 1 << 18
_HEAD = struct.Struct("!i")
_MOST_READS = 16  # for one rank, before others have their turn


class Mailbox:
    """Sends and receives messages of one rank without ever waiting for it.

    Args:
        connection: A connection that has passed the handshake; it is closed, and its socket kept.
    """

    def __init__(self, connection: Connection) -> None:
        self.socket = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        self.socket.setblocking(False)
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait until the rank reads."""
        return bool(self._outgoing)

    @property
    def is_delivered(self) -> bool:
        """Whether the host of the rank has all that was sent, so that closing loses nothing.

        TCP discards what the other host has not acknowledged when the rank sends something to a
        closed connection. It is False for TCP where the system does not tell, as on macOS.
        """
        if self._outgoing or self.socket.family == socket.AF_UNIX:
            return not self._outgoing
        try:
            return not any(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return False

    def send(self, data: bytes) -> None:
        """Send an encoded message as far as the rank reads; the rest waits for `flush`.

        It is not copied: the result of an evaluation may be large, and may wait for many ranks.
        """
        self._outgoing.append(memoryview(data))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the rank reads.

        Raises:
            OSError: The rank is gone.
        """
        try:
            while self._outgoing:
                sent = self.socket.send(self._outgoing[0][:_READ_BYTES])
                self._outgoing[0] = self._outgoing[0][sent:]
                if not self._outgoing[0]:
                    self._outgoing.popleft()
        except BlockingIOError:
            pass

    def receive(self) -> list[Any]:
        """Return the messages that have arrived as a whole.

        Raises:
            EOFError, OSError: The rank is gone.
            ValueError: It sent something else than messages.
        """
        ended: Exception | None = None
        for _ in range(_MOST_READS):
            try:
                data = self.socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                ended = error
                break
            if not data:
                ended = EOFError("the connection was closed")
                break
            self._incoming += data
        found = self._messages()
        if ended is not None and not found:
            raise ended  # else it is found again when the messages were taken
        return found

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _messages(self) -> list[Any]:
        found: list[Any] = []
        while len(self._incoming) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._incoming)
            if not 0 <= size <= MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {size} bytes; up to {MAX_MESSAGE_BYTES} are read")
            end = _HEAD.size + size
            if len(self._incoming) < end:
                break
            data = bytes(self._incoming[_HEAD.size : end])
            del self._incoming[:end]
            try:
                found.append(pickle.loads(data))
            except Exception as error:  # of a rank with another release
                raise ValueError(f"bytes that are no message ({describe_error(error)})") from error
        return found
