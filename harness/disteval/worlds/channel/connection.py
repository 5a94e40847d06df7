"""The connection between a rank and its leader, and the proof that each can trust the other.

The connection never uses the backend under test: orders and replies must arrive when that backend
hangs. Both ends prove that they know the world's key (an HMAC challenge of
`multiprocessing.connection`) before they unpickle a byte. The key lies in a directory that only its
owner can enter.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import struct
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from disteval.errors import WorldError

_POLL_SECONDS = 0.02
_HANDSHAKE_SECONDS = 10.0


def open_listener(directory: Path, host: str) -> tuple[socket.socket, bytes]:
    """Listen on a free port of ``host``, and write address and key into the control directory."""
    key = secrets.token_bytes(32)
    listener = socket.create_server((host, 0), backlog=128)
    found = {"host": host, "port": listener.getsockname()[1], "key": key.hex()}
    write_address(directory, json.dumps(found))
    return listener, key


def accept(listener: socket.socket, key: bytes) -> Connection:
    """Accept one connection, and have the other end prove that it knows the key.

    Raises:
        AuthenticationError, EOFError, OSError: Nobody connected within the listener's timeout, or
            the other end is not a rank, has died, or said nothing for some seconds.
    """
    handle, _ = listener.accept()
    with handle:
        connection = Connection(handle.detach())
    bound_waits(connection, _HANDSHAKE_SECONDS)
    deliver_challenge(connection, key)
    answer_challenge(connection, key)
    _send_at_once(connection)
    return connection


def read_address(directory: Path) -> str:
    """Return what `open_listener` wrote, for ranks that can't read the directory themselves."""
    return (directory / "address").read_text()


def write_address(directory: Path, address: str) -> None:
    """Write what `read_address` returned to where `connect` looks for it."""
    # Written under another name first: a rank that sees the file sees all of it.
    draft = directory / f"address.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(address)
    draft.rename(directory / "address")


def connect(directory: Path, timeout: float) -> Connection:
    """Connect to the leader that wrote its address into the control directory.

    Raises:
        WorldError: No leader of this user appeared within ``timeout`` seconds, or it can't be
            reached from here.
    """
    address = directory / "address"
    deadline = time.monotonic() + timeout
    while not address.exists():
        if time.monotonic() > deadline:
            raise WorldError(
                f"no leader appeared in {directory} within {timeout:g} s; the ranks of one world "
                f"must share that directory, and rank 0 must be one of them"
            )
        time.sleep(_POLL_SECONDS)
    if directory.stat().st_uid != os.getuid():
        raise WorldError(f"{directory} belongs to another user; refusing to take orders from there")
    found = json.loads(address.read_text())
    where, key = (found["host"], int(found["port"])), bytes.fromhex(found["key"])
    try:
        connection = _shake_hands(where, key, max(_POLL_SECONDS, deadline - time.monotonic()))
    except (AuthenticationError, EOFError, OSError) as error:
        raise WorldError(
            f"the leader that wrote its address into {directory} can't be reached at "
            f"{where[0]}:{where[1]} ({type(error).__name__}: {error}); it has ended, or runs on "
            f"another host"
        ) from error
    connection = _with_low_descriptor(connection)
    _send_at_once(connection)
    return connection


def _shake_hands(where: tuple[str, int], key: bytes, seconds: float) -> Connection:
    """Do what multiprocessing's Client does, in bounded time.

    A leader that has ended may have left its address behind, and another program may have its port.
    """
    with socket.create_connection(where, seconds) as handle:
        handle.settimeout(None)
        connection = Connection(handle.detach())
    bound_waits(connection, seconds)
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    bound_waits(connection, 0)
    return connection


def bound_waits(connection: Connection, seconds: float) -> None:
    """Limit how long sending and receiving wait for the next byte; 0 removes the limit.

    They then raise BlockingIOError; within a message, the connection is of no further use.
    """
    limit = struct.pack("ll", *divmod(int(seconds * 1e6), 1_000_000))
    with socket.socket(fileno=os.dup(connection.fileno())) as handle:
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            handle.setsockopt(socket.SOL_SOCKET, direction, limit)


def _send_at_once(connection: Connection) -> None:
    # Small messages would otherwise wait for the other end's delayed acknowledgement.
    with socket.socket(fileno=os.dup(connection.fileno())) as handle:
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _with_low_descriptor(connection: Connection) -> Connection:
    """Move the connection to the lowest free descriptor.

    A killed process closes its descriptors in ascending order. The leader should notice the loss
    before mpirun does, which then kills the other ranks: the first lost rank is the one to blame.
    """
    low = Connection(fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    connection.close()
    return low
