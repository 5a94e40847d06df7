"""The proof of both ends of a connection that they know the world's key.

A rank sends a nonce. The leader answers with a nonce of its own and an HMAC-SHA256 of both, and the
rank with another HMAC of both. Every message has a fixed size, and an HMAC is bound to its sender,
so that neither end can be made to give the other's proof. Nothing is unpickled before.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Generator
from multiprocessing import AuthenticationError

_BYTES = 32  # of a nonce, and of an HMAC-SHA256


class Visitor:
    """The leader's end of a connection whose other end has not proved yet that it is a rank.

    Attributes:
        socket: The connection.
        deadline: The time on the monotonic clock at which the other end must be done.
    """

    def __init__(self, connection: socket.socket, key: bytes, seconds: float) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.deadline = time.monotonic() + seconds
        self._steps = self._shake_hands(key)

    def is_rank(self) -> bool:
        """Take what has arrived; return whether it is proved.

        Raises:
            AuthenticationError, EOFError, OSError: The other end is not a rank, or is gone.
        """
        return next(self._steps, True)

    def _shake_hands(self, key: bytes) -> Generator[bool, None, None]:
        theirs = yield from self._receive()
        ours = secrets.token_bytes(_BYTES)
        self.socket.sendall(ours + _proof(key, b"leader", theirs, ours))  # it fits any buffer
        answer = yield from self._receive()
        if not hmac.compare_digest(answer, _proof(key, b"rank", theirs, ours)):
            raise AuthenticationError("a rank did not prove that it knows the key")

    def _receive(self) -> Generator[bool, None, bytes]:
        data = b""
        while len(data) < _BYTES:
            try:
                part = self.socket.recv(_BYTES - len(data))
            except BlockingIOError:
                yield False
                continue
            if not part:
                raise EOFError("the connection was closed")
            data += part
        return data


def shake_hands(connection: socket.socket, key: bytes, seconds: float) -> None:
    """Do a rank's part within so many seconds.

    Raises:
        AuthenticationError, EOFError, OSError: The other end is not this world's leader, is gone,
            or does not answer.
    """
    deadline = time.monotonic() + seconds
    ours = secrets.token_bytes(_BYTES)
    connection.settimeout(seconds)
    connection.sendall(ours)
    answer = b""
    while len(answer) < 2 * _BYTES:
        # Whoever sends a byte from time to time does not get more time by it.
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(2 * _BYTES - len(answer))
        if not part:
            raise EOFError("the connection was closed")
        answer += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    theirs, proof = answer[:_BYTES], answer[_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"leader", ours, theirs)):
        raise AuthenticationError("the other end did not prove that it knows the key")
    connection.sendall(_proof(key, b"rank", ours, theirs))
    connection.settimeout(None)


def _proof(key: bytes, sender: bytes, of_rank: bytes, of_leader: bytes) -> bytes:
    return hmac.digest(key, sender + of_rank + of_leader, "sha256")
