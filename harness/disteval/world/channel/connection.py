"""The connection of a rank to its leader.

The connection never uses the backend under test: orders and replies must arrive when that backend
hangs. Where all ranks are on one host it is a Unix socket in the control directory, which nobody
else can enter; otherwise it is TCP. Address and key lie in that directory.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import socket
import struct
import threading
import time
from dataclasses import dataclass, field, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.errors import WorldError
from disteval.world.channel.handshake import shake_hands
from disteval.world.control_directory import opened

_POLL_SECONDS = 0.02
_NETWORK_POLL_SECONDS = 0.25
_ANSWER_SECONDS = 60.0  # in which a leader must answer; it may be busy
_CONNECT_SECONDS = 10.0  # in which a host must answer, or is tried again
_SILENT_SECONDS = 30  # after which a host that does not even answer TCP is out of reach
_BUSY_SECONDS = 600  # for which a leader may not read a message that fills TCP's buffers
_SMALL_BYTES = 1 << 16
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
_ADDRESS, _SOCKET = "address", "leader"


@dataclass(frozen=True)
class Address:
    """Where the leader of a world listens, and the key that its ranks prove to know.

    Attributes:
        host: The leader's IPv4 address; None stands for a Unix socket in ``folder``.
        port: The port at that address.
        key: The key.
        folder: The control directory of the leader, which other hosts need not see.
    """

    host: str | None
    port: int
    key: bytes = field(repr=False)
    folder: str = ""

    def dump(self) -> str:
        """Return the address as a text, which has to be kept secret."""
        return json.dumps({**vars(self), "key": self.key.hex()})

    @classmethod
    def load(cls, text: str | bytes) -> Address:
        """Return the address that `dump` has made a text."""
        found = json.loads(text)
        return cls(**{**found, "key": bytes.fromhex(found["key"])})


def read_address(directory: Path) -> Address:
    """Return the address that a leader has written to its control directory.

    Raises:
        FileNotFoundError: It has not, or its directory is gone.
        WorldError: The directory is not private.
    """
    with opened(directory) as descriptor:
        file = os.open(_ADDRESS, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=descriptor)
        with os.fdopen(file) as text:
            return replace(Address.load(text.read()), folder=str(directory))


def write_address(directory: Path, address: Address) -> None:
    """Write an address to where `read_address` looks for it."""
    # Written under another name first: a rank that sees the file sees all of it.
    draft = f"{_ADDRESS}.{os.getpid()}"
    with opened(directory) as descriptor:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=descriptor), "w") as file:
            file.write(address.dump())
        os.rename(draft, _ADDRESS, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def unix_address(directory: Path, descriptor: int) -> str:
    """Return an address for a Unix socket in an open directory, however long its path is.

    The system limits an address to about a hundred bytes. Without ``/proc``, as on macOS, the path
    has to be that short.
    """
    through = Path(f"/proc/self/fd/{descriptor}")
    return str((through if through.exists() else directory) / _SOCKET)


def connect(place: Path | Address, patience: float = 0.0) -> Connection:
    """Connect to the leader of a world.

    Args:
        place: The leader's address, or the directory to which the leader writes it.
        patience: The seconds until the leader must listen there. A rank that a world has started
            has none, because its leader listened before.

    Raises:
        WorldError: The directory is not private; or no leader listens in time, or it can't be
            reached from here.
    """
    begin = time.monotonic()
    while True:
        address = None
        try:
            address = read_address(place) if isinstance(place, Path) else place
            connection = _connect(address)
        except (AuthenticationError, EOFError, OSError) as error:
            waited = time.monotonic() - begin
            over_network = address is not None and address.host is not None
            if waited >= _seconds_to_try_again(error, patience, over_network):
                tried = f"{waited:.0f} s ({type(error).__name__}: {error})"
                raise WorldError(_why(address, place, tried, error)) from error
            time.sleep(_NETWORK_POLL_SECONDS if over_network else _POLL_SECONDS)
        else:
            return _with_low_descriptor(connection)


def _seconds_to_try_again(error: Exception, patience: float, over_network: bool) -> float:
    if isinstance(error, BlockingIOError):  # many ranks connect at the same time
        return _ANSWER_SECONDS
    # The address may be that of a leader that has died, and whose place another takes; another
    # program may listen there meanwhile, or its host may be gone.
    again = over_network or isinstance(error, (FileNotFoundError, ConnectionRefusedError))
    return patience if again else 0.0


def _why(address: Address | None, place: Path | Address, tried: str, error: Exception) -> str:
    """Return why no leader was reached, and what can be done."""
    if address is None or address.host is None:
        return (
            f"no leader could be reached in {address.folder if address else place} within {tried}; "
            f"all ranks of a world must share that directory, and rank 0 must be one of them; see "
            f"whether it has ended"
        )
    here = f"{platform.node()} reached no leader at {address.host}:{address.port} within {tried}"
    if isinstance(error, AuthenticationError):
        return (
            f"{here}; who listens there has another key: it leads another job, or runs as another "
            f"user; see whether DISTEVAL_KEY_FILE is the same on every host, and give each job a "
            f"DISTEVAL_LEADER with a port of its own"
        )
    return (
        f"{here}; rank 0 should listen there. It may have ended, a firewall may drop what hosts "
        f"send each other, or the address may be one of another network or container: choose the "
        f"leader's with --interface on its host, or with DISTEVAL_LEADER"
    )


def _connect(address: Address) -> SharedConnection:
    if address.host is None:
        handle = _connect_unix(Path(address.folder))
    else:
        handle = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
    with handle:
        shake_hands(handle, address.key, _ANSWER_SECONDS)
        keep_up(handle)
        return SharedConnection(handle.detach())


class SharedConnection(Connection):
    """A connection on which several threads may send, a message each."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self._sending = threading.Lock()
        self._patient = False

    def send_bytes(self, buf: Any, *args: Any, **options: Any) -> None:
        """See `multiprocessing.connection.Connection.send_bytes`."""
        with self._sending:
            self._be_patient(len(buf) > _SMALL_BYTES)
            super().send_bytes(buf, *args, **options)

    def _be_patient(self, patient: bool) -> None:
        """Choose how long a leader may take in nothing that this rank sends.

        It is busy with others' large messages, or out of reach; TCP does not tell these apart.
        """
        if patient != self._patient and hasattr(socket, "TCP_USER_TIMEOUT"):
            self._patient = patient
            with socket.socket(fileno=os.dup(self.fileno())) as handle:
                if handle.family != socket.AF_UNIX:
                    milliseconds = (_BUSY_SECONDS if patient else _SILENT_SECONDS) * 1000
                    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _connect_unix(directory: Path) -> socket.socket:
    handle = socket.socket(socket.AF_UNIX)
    try:
        handle.settimeout(_ANSWER_SECONDS)
        with opened(directory) as descriptor:
            handle.connect(unix_address(directory, descriptor))
    except BaseException:
        handle.close()
        raise
    return handle


def process_at_other_end(connection: socket.socket) -> int:
    """Return the process id of the other end, as this process's pid namespace counts.

    It is 0 where that is not known: over TCP, on other systems than Linux, and where that process
    can't be seen from here.
    """
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return 0
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    return int(struct.unpack("iII", found)[0])


def why_unreachable(error: Exception, host: str) -> str:
    """Return in words that the network took a connection away; nothing if its other end closed it.

    See `keep_up` for how that is noticed.

    Args:
        error: The error of receiving.
        host: The name or address of the other end's host.
    """
    if not isinstance(error, OSError) or error.errno not in _UNREACHABLE:
        return ""
    return f"its host, {host}, did not answer for {_SILENT_SECONDS} s: {error.strerror}"


def address_of_other_end(connection: socket.socket) -> str:
    """Return the address from which the other end has connected; nothing for a Unix socket."""
    return "" if connection.family == socket.AF_UNIX else str(connection.getpeername()[0])


def keep_up(handle: socket.socket) -> None:
    """Have TCP send small messages at once, and find out when the other host is out of reach.

    Without that a connection whose cable is cut would wait for hours. Both ends do this.
    """
    if handle.family == socket.AF_UNIX:
        return
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS names the first one otherwise, and has no limit for what was sent and not received.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _SILENT_SECONDS // 2),
        (("TCP_KEEPINTVL",), max(1, _SILENT_SECONDS // 10)),
        (("TCP_KEEPCNT",), 5),
        (("TCP_USER_TIMEOUT",), _SILENT_SECONDS * 1000),
    ):
        for name in names:
            if hasattr(socket, name):
                handle.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break


def _with_low_descriptor(connection: SharedConnection) -> Connection:
    """Move the connection to the lowest free descriptor.

    A killed process closes its descriptors in ascending order. The leader should notice the loss
    before mpirun does, which then kills the other ranks: the first lost rank is the one to blame.
    """
    low = SharedConnection(fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
    connection.close()
    return low
