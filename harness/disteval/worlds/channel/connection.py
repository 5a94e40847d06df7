"""The connection of a rank to its leader.

The connection never uses the backend under test: orders and replies must arrive when that backend
hangs. Where all ranks are on one host it is a Unix socket in the control directory, which nobody
else can enter; otherwise it is TCP. Address and key lie in that directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

from disteval.errors import WorldError
from disteval.worlds.channel.handshake import shake_hands
from disteval.worlds.control_directory import opened

_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 60.0  # in which a leader must answer; it may be busy
_ADDRESS, _SOCKET = "address", "leader"


def read_address(directory: Path) -> str:
    """Return what the leader has written, for ranks that can't read the directory themselves."""
    with opened(directory) as descriptor:
        return _read(descriptor)


def write_address(directory: Path, address: str) -> None:
    """Write what `read_address` returned to where `connect` looks for it."""
    # Written under another name first: a rank that sees the file sees all of it.
    draft = f"{_ADDRESS}.{os.getpid()}"
    with opened(directory) as descriptor:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=descriptor), "w") as file:
            file.write(address)
        os.rename(draft, _ADDRESS, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def unix_address(directory: Path, descriptor: int) -> str:
    """Return an address for a Unix socket in an open directory, however long its path is.

    The system limits an address to about a hundred bytes. Without ``/proc``, as on macOS, the path
    has to be that short.
    """
    through = Path(f"/proc/self/fd/{descriptor}")
    return str((through if through.exists() else directory) / _SOCKET)


def connect(directory: Path, patience: float = 0.0) -> Connection:
    """Connect to the leader of a world.

    Args:
        directory: The world's control directory.
        patience: The seconds until the leader must listen there. A rank that a world has started
            has none, because its leader listened before.

    Raises:
        WorldError: The directory is not private; or no leader listens in time, or it can't be
            reached from here.
    """
    begin = time.monotonic()
    while True:
        try:
            connection = _connect(directory)
        except (AuthenticationError, EOFError, OSError) as error:
            waited = time.monotonic() - begin
            if waited >= _seconds_to_try_again(error, patience):
                raise WorldError(
                    f"no leader could be reached in {directory} within {waited:.0f} s "
                    f"({type(error).__name__}: {error}); all ranks of a world must share that "
                    f"directory, and rank 0 must be one of them; see whether it has ended"
                ) from error
            time.sleep(_POLL_SECONDS)
        else:
            return _with_low_descriptor(connection)


def _seconds_to_try_again(error: Exception, patience: float) -> float:
    if isinstance(error, BlockingIOError):  # many ranks connect at the same time
        return _ANSWER_SECONDS
    # The address may be that of a leader that has died, and whose place another takes.
    return patience if isinstance(error, (FileNotFoundError, ConnectionRefusedError)) else 0.0


def _connect(directory: Path) -> Connection:
    with opened(directory) as descriptor:
        found = json.loads(_read(descriptor))
        if found["host"] is None:
            handle = _connect_unix(unix_address(directory, descriptor))
        else:
            handle = socket.create_connection((found["host"], found["port"]), _ANSWER_SECONDS)
    with handle:
        shake_hands(handle, bytes.fromhex(found["key"]), _ANSWER_SECONDS)
        send_at_once(handle)
        return Connection(handle.detach())


def _connect_unix(address: str) -> socket.socket:
    handle = socket.socket(socket.AF_UNIX)
    try:
        handle.settimeout(_ANSWER_SECONDS)
        handle.connect(address)
    except BaseException:
        handle.close()
        raise
    return handle


def _read(descriptor: int) -> str:
    file = os.open(_ADDRESS, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=descriptor)
    with os.fdopen(file) as text:
        return text.read()


def bound_waits(connection: Connection, seconds: float) -> None:
    """Limit how long sending and receiving wait for the next byte; 0 removes the limit.

    They then raise BlockingIOError; within a message, the connection is of no further use.
    """
    limit = struct.pack("ll", *divmod(int(seconds * 1e6), 1_000_000))
    with socket.socket(fileno=os.dup(connection.fileno())) as handle:
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            handle.setsockopt(socket.SOL_SOCKET, direction, limit)


def process_at_other_end(connection: Connection) -> int:
    """Return the process id of the other end, as this process's pid namespace counts.

    It is 0 where that is not known: over TCP, on other systems than Linux, and where that process
    can't be seen from here.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as handle:
        if handle.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return 0
        found = handle.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        return int(struct.unpack("iII", found)[0])


def send_at_once(handle: socket.socket) -> None:
    """Have TCP send small messages without waiting for an acknowledgement of those before."""
    if handle.family != socket.AF_UNIX:
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _with_low_descriptor(connection: Connection) -> Connection:
    """Move the connection to the lowest free descriptor.

    A killed process closes its descriptors in ascending order. The leader should notice the loss
    before mpirun does, which then kills the other ranks: the first lost rank is the one to blame.
    """
    low = Connection(fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    connection.close()
    return low
