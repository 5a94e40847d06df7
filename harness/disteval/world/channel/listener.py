"""The place where a leader waits for its ranks, among connections of anybody else."""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path

from disteval.errors import WorldError
from disteval.world.channel.connection import Address, keep_up, unix_address
from disteval.world.channel.handshake import Visitor
from disteval.world.control_directory import opened

_VISIT_SECONDS = 30.0  # in which a connection must prove that it comes from a rank
_MOST_STRANGERS = 64  # that may stay connected beside the ranks


class Listener:
    """Listens for the ranks of a world.

    Nobody keeps a rank waiting by connecting and then saying nothing, or too little.

    Args:
        world_size: The number of ranks.
        host: The address to listen on. None listens in a control directory, for ranks of this host
            alone.
        port: The port at that address; 0 stands for any that is free.
        key: The key of these ranks; if it is empty, a new one is drawn.
        directory: The control directory, if there is one.

    Attributes:
        address: The address on which it listens, with the key.

    Raises:
        WorldError: It can't listen at that address, or not for so many ranks.
    """

    def __init__(
        self, world_size: int, host: str | None, port: int, key: bytes, directory: Path | None
    ) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and world_size > limit:  # before any rank is started
            raise WorldError(
                f"{world_size} ranks need a connection to the leader each, which may have {limit} "
                f"open files; start fewer ranks, or raise the limit with `ulimit -n`"
            )
        self._key = key or secrets.token_bytes(32)
        self._most = world_size + _MOST_STRANGERS
        self._visitors: dict[Visitor, None] = {}  # the oldest first
        self._listener = _listen(host, port, directory)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        port = self._listener.getsockname()[1] if host else 0
        self.address = Address(host, port, self._key, str(directory or ""))

    def admit(self) -> Iterator[socket.socket]:
        """Take what has arrived, and yield the connections that were proved to be of ranks.

        Raises:
            WorldError: This process can't open another connection.
        """
        for key, _ in self._selector.select(0.0):
            visitor: Visitor | None = key.data
            if visitor is None:
                self._accept()
                continue
            try:
                if visitor.is_rank():
                    yield self._release(visitor)
            except (AuthenticationError, EOFError, OSError):
                self._expel(visitor)
        now = time.monotonic()
        for visitor in [one for one in self._visitors if one.deadline < now]:
            self._expel(visitor)

    def fileno(self) -> int:
        """Return the descriptor that can be read when `admit` has something to do."""
        return self._selector.fileno()

    def close(self) -> None:
        """Stop listening, and close every connection that was not admitted."""
        for visitor in [*self._visitors]:
            self._expel(visitor)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            os.close(os.dup(connection.fileno()))  # another is needed for a moment
        except (BlockingIOError, ConnectionError):  # it is gone again
            return
        except OSError as error:
            raise WorldError(
                f"the leader can't open another connection ({error}), and it needs one for each "
                f"rank; raise the limit with `ulimit -n`, or start fewer ranks"
            ) from error
        visitor = Visitor(connection, self._key, _VISIT_SECONDS)
        self._selector.register(connection, selectors.EVENT_READ, visitor)
        self._visitors[visitor] = None
        if len(self._visitors) > self._most:
            # A rank is done in a moment, so the oldest is not one.
            self._expel(next(iter(self._visitors)))

    def _release(self, visitor: Visitor) -> socket.socket:
        self._forget(visitor)
        keep_up(visitor.socket)
        return visitor.socket

    def _expel(self, visitor: Visitor) -> None:
        if visitor in self._visitors:
            self._forget(visitor)
            visitor.socket.close()

    def _forget(self, visitor: Visitor) -> None:
        del self._visitors[visitor]
        self._selector.unregister(visitor.socket)


def _listen(host: str | None, port: int, directory: Path | None) -> socket.socket:
    if host is not None:
        try:
            listener = socket.create_server((host, port), backlog=socket.SOMAXCONN)
        except OSError as error:
            raise WorldError(
                f"the leader can't listen at {host}:{port} ({error.strerror}); choose another port "
                f"or address, or end the process that uses it"
            ) from error
    else:
        assert directory is not None
        listener = socket.socket(socket.AF_UNIX)
        with opened(directory) as descriptor:
            listener.bind(unix_address(directory, descriptor))
        listener.listen(socket.SOMAXCONN)
    listener.setblocking(False)
    return listener
