"""A leader's connection to one rank, on which nothing waits."""

from __future__ import annotations

import fcntl
import pickle
import socket
import termios
from collections import deque
from collections.abc import Sequence
from typing import Any

from disteval.errors import describe_error
from disteval.world.channel.messages import HEAD, MAX_MESSAGE_BYTES

_FIRST_BYTES, _READ_BYTES = 1 << 12, 1 << 16
_MOST_READS = 64  # of one rank, before others have their turn


class Mailbox:
    """Sends and receives messages of one rank without ever waiting for it.

    Args:
        connection: A connection whose other end has proved to be a rank.

    Attributes:
        socket: The same.
        rank: The rank at the other end; None before its first message.
        is_writing: Whether the selector says when the rank reads.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.rank: int | None = None
        self.is_writing = False
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()
        self._broken: OSError | None = None  # why nothing can be sent

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

    def send(self, data: Sequence[bytes]) -> None:
        """Send an encoded message as far as the rank reads; the rest waits for `flush`.

        It is not copied: the result of an evaluation may be large, and may wait for many ranks.
        That the rank is gone is noticed when it is received from.
        """
        self._outgoing += map(memoryview, data)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the rank reads."""
        try:
            while self._outgoing:
                sent = self.socket.send(self._outgoing[0])
                if sent == len(self._outgoing[0]):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError as error:  # what it has sent before may still be received
            self._broken = self._broken or error
            self._outgoing.clear()

    def receive(self) -> list[Any]:
        """Return the messages that have arrived as a whole.

        Raises:
            EOFError, OSError: The rank is gone, or sent something else than messages.
        """
        ended: Exception | None = None
        try:
            size = _FIRST_BYTES
            for _ in range(_MOST_READS):
                data = self.socket.recv(size)
                if not data:
                    ended = EOFError("the connection was closed")
                self._incoming += data
                if len(data) < size:
                    break
                size = _READ_BYTES
        except BlockingIOError:
            pass
        except OSError as error:
            ended = error
        found = self._messages()
        if ended is not None and not found:
            raise self._broken or ended  # else it is found again when the messages were taken
        return found

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _messages(self) -> list[Any]:
        found: list[Any] = []
        while len(self._incoming) >= HEAD.size:
            (size,) = HEAD.unpack_from(self._incoming)
            if not 0 <= size <= MAX_MESSAGE_BYTES:
                raise ConnectionError(f"it sent a message of {size} bytes")
            end = HEAD.size + size
            if len(self._incoming) < end:
                break
            with memoryview(self._incoming) as data, data[HEAD.size : end] as body:
                try:
                    found.append(pickle.loads(body))
                except Exception as error:  # of a rank with another release
                    what = f"it sent bytes that are no message ({describe_error(error)})"
                    raise ConnectionError(what) from error
            del self._incoming[:end]
        return found
