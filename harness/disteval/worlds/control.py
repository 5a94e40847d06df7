"""The private channel between the leader of a world and its ranks.

Never the backend under test: orders and replies must get through when that backend hangs. Both ends
prove that they know the world's key (an HMAC challenge, `multiprocessing.connection`) before a byte
is unpickled; the key lies in a directory that only its owner can enter.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import Any

import cloudpickle

from disteval.errors import UsageError, WorldError

MAX_MESSAGE_BYTES = 1 << 30
"""The largest order or reply; 1 GiB."""

MAX_NOTE_BYTES = 1 << 20
"""The largest note; words on an order's progress are meant, not data."""

_ENVELOPE_BYTES = 1 << 20  # left for the function or the traceback beside the value
_POLL_SECONDS = 0.02
_HANDSHAKE_SECONDS = 10.0


@dataclass(frozen=True)
class Hello:
    """A rank's first words: which it is, and the process and thread that it lives in."""

    rank: int
    pid: int
    thread: int


@dataclass(frozen=True)
class Order:
    """Call a function with the rank's backend; both are pickled with cloudpickle."""

    function: bytes
    arguments: bytes


@dataclass(frozen=True)
class Progress:
    """The rank is alive and has done ``done`` of ``total`` samples of the present order."""

    done: int
    total: int


@dataclass(frozen=True)
class Note:
    """Something that the rank has to tell before its order is done; pickled with cloudpickle."""

    value: bytes


@dataclass(frozen=True)
class Publication:
    """The rank gives a value to whoever asks for its key."""

    key: str
    value: str | bytes


@dataclass(frozen=True)
class Question:
    """The rank waits for the value of a key."""

    key: str


@dataclass(frozen=True)
class Answer:
    """The value of a key, for a rank that waits for it."""

    key: str
    value: str | bytes


@dataclass(frozen=True)
class Reply:
    """What came of an order: a value, or an exception with its traceback and summary as text."""

    value: bytes | None
    error: bytes | None = None
    trace: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Dismissal:
    """There are no more orders: leave the group and end with this exit code."""

    exit_code: int = 0


def open_listener(control: Path, host: str) -> tuple[Listener, bytes]:
    """Listen on a free port of ``host``, and leave address and key for the ranks in ``control``.

    Returns:
        What `accept` takes.
    """
    key = secrets.token_bytes(32)
    listener = Listener((host, 0), backlog=128)
    found = {"host": listener.address[0], "port": listener.address[1], "key": key.hex()}
    leave_address(control, json.dumps(found))
    return listener, key


def accept(listener: Listener, key: bytes) -> Connection:
    """Wait for a rank, and have it prove that it knows the key.

    Raises:
        AuthenticationError, EOFError, OSError: It was none, or one that died; somebody who says
            nothing is waited for in vain but a few seconds.
    """
    channel = listener.accept()
    bound_waits(channel, _HANDSHAKE_SECONDS)
    deliver_challenge(channel, key)
    answer_challenge(channel, key)
    send_at_once(channel)
    return channel


def read_address(control: Path) -> str:
    """Return what `open_listener` has left, for ranks that can't read it themselves."""
    return (control / "address").read_text()


def leave_address(control: Path, address: str) -> None:
    """Leave what `read_address` returned where `connect` looks for it."""
    # Written under another name first: a rank that sees the file sees all of it.
    draft = control / f"address.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(address)
    draft.rename(control / "address")


def connect(control: Path, timeout: float) -> Connection:
    """Reach the leader that left its address in ``control``.

    Raises:
        WorldError: No leader of this user appeared within ``timeout`` seconds, or it can't be
            reached from here.
    """
    address = control / "address"
    deadline = time.monotonic() + timeout
    while not address.exists():
        if time.monotonic() > deadline:
            raise WorldError(
                f"no leader appeared in {control} within {timeout:g} s; the ranks of one world "
                f"must share that directory, and rank 0 must be one of them"
            )
        time.sleep(_POLL_SECONDS)
    if control.stat().st_uid != os.getuid():
        raise WorldError(f"{control} belongs to another user; refusing to take orders from there")
    found = json.loads(address.read_text())
    where, key = (found["host"], int(found["port"])), bytes.fromhex(found["key"])
    try:
        channel = _shake_hands(where, key, max(_POLL_SECONDS, deadline - time.monotonic()))
    except (AuthenticationError, EOFError, OSError) as error:
        raise WorldError(
            f"the leader that left its address in {control} can't be reached at "
            f"{where[0]}:{where[1]} ({type(error).__name__}: {error}); it has ended, or runs on "
            f"another host"
        ) from error
    channel = _with_low_descriptor(channel)
    send_at_once(channel)
    return channel


def _shake_hands(where: tuple[str, int], key: bytes, seconds: float) -> Connection:
    """Do what multiprocessing's Client does, within bounds: who listens there may be somebody else.

    A leader that has ended may have left its address, and its port may be another's by now.
    """
    with socket.create_connection(where, seconds) as handle:
        handle.settimeout(None)
        channel = Connection(handle.detach())
    bound_waits(channel, seconds)
    answer_challenge(channel, key)
    deliver_challenge(channel, key)
    bound_waits(channel, 0)
    return channel


def send_at_once(channel: Connection) -> None:
    """Send small messages as they come, not after the other end's delayed acknowledgement."""
    with socket.socket(fileno=os.dup(channel.fileno())) as handle:
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def bound_waits(channel: Connection, seconds: float) -> None:
    """Let `send` and `receive` wait so long for the next byte to go or to come; 0 is for ever.

    They then raise BlockingIOError; within a message, the channel is of no further use.
    """
    limit = struct.pack("ll", *divmod(int(seconds * 1e6), 1_000_000))
    with socket.socket(fileno=os.dup(channel.fileno())) as handle:
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            handle.setsockopt(socket.SOL_SOCKET, direction, limit)


def _with_low_descriptor(channel: Connection) -> Connection:
    """Move the channel to the lowest free descriptor.

    A killed process closes its descriptors in ascending order. The leader is to learn of it before
    mpirun does, which then kills the other ranks: the first one lost is the one to blame.
    """
    low = Connection(fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    channel.close()
    return low


def packed(value: Any) -> bytes:
    """Pickle what an order or a reply carries, functions and classes of scripts included.

    Raises:
        UsageError: It is larger than a message may be.
    """
    data: bytes = cloudpickle.dumps(value)
    if len(data) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise UsageError(
            f"{len(data)} bytes are too many for one order or reply; "
            f"it holds up to {MAX_MESSAGE_BYTES}"
        )
    return data


def send(connection: Connection, message: Any) -> None:
    """Send one message."""
    connection.send_bytes(pickle.dumps(message, protocol=5))


def receive(connection: Connection) -> Any:
    """Receive one message; EOFError or OSError when the other end is gone."""
    return pickle.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
