"""A rank's end of the channel: how it connects to its leader, and what it sends and receives.

The channel never uses the backend under test: orders and replies must arrive when that backend
hangs. Where all ranks are on one host it is a Unix socket in the control directory, which nobody
else can enter; otherwise it is TCP. Address and key lie in that directory.

Both ends prove first that they know the key of the world: a rank sends a nonce, the leader answers
with a nonce of its own and an HMAC-SHA256 of both, and the rank with another HMAC of both. Every
message of the proof has a fixed size, and an HMAC is bound to its sender, so that neither end can
be made to give the other's proof. Nothing is unpickled before.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import json
import math
import os
import pickle
import platform
import queue
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from disteval.errors import WorldError
from disteval.host import process_state, this_machine
from disteval.world.channel.messages import (
    MAX_MESSAGE_BYTES,
    Alive,
    Dismissal,
    Examine,
    Examined,
    Hello,
    take_messages,
)
from disteval.world.control_directory import opened

NONCE_BYTES = 32
"""The bytes of a nonce, and of an HMAC-SHA256."""

_POLL_SECONDS = 0.02
_NETWORK_POLL_SECONDS = 0.25
_ANSWER_SECONDS = 60.0  # in which a leader must answer; it may be busy
_CONNECT_SECONDS = 10.0  # in which a host must answer, or is tried again
_SILENT_SECONDS = 30  # after which a host that does not even answer TCP is out of reach
_BUSY_SECONDS = 600  # for which a leader may not read a message that fills TCP's buffers
_SMALL_BYTES, _READ_BYTES = 1 << 16, 1 << 20
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
_ADDRESS, _SOCKET = "address", "leader"
_LOOK_SECONDS = 1.0
_LAST_SECONDS = 2.0  # in which a rank that handles SIGTERM keeps what it has


@dataclass(frozen=True)
class Address:
    """Where the leader of a world listens, and the key that its ranks prove to know.

    Attributes:
        host: The leader's IPv4 address; None stands for a Unix socket in ``folder``.
        port: The port at that address; 0 stands for any that is free, where nobody listens yet.
        key: The key; an empty one stands for a new one, where nobody listens yet.
        folder: The control directory of the leader, which other hosts need not see.
    """

    host: str | None
    port: int = 0
    key: bytes = field(default=b"", repr=False)
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
            # The address may be that of a dead leader, whose place another takes; another program
            # may listen there meanwhile, or its host may be gone.
            again = over_network or isinstance(error, (FileNotFoundError, ConnectionRefusedError))
            seconds = patience if again else 0.0
            if isinstance(error, BlockingIOError):  # many ranks connect at the same time
                seconds = _ANSWER_SECONDS
            if waited >= seconds:
                tried = f"{waited:.0f} s ({type(error).__name__}: {error})"
                raise WorldError(_why(address, place, tried, error)) from error
            time.sleep(_NETWORK_POLL_SECONDS if over_network else _POLL_SECONDS)
        else:
            return connection


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


def _connect(address: Address) -> Connection:
    if address.host is None:
        handle = socket.socket(socket.AF_UNIX)
    else:  # by each address that a name of a host has
        handle = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
    with handle:
        if address.host is None:
            handle.settimeout(_ANSWER_SECONDS)
            directory = Path(address.folder)
            with opened(directory) as descriptor:
                handle.connect(unix_address(directory, descriptor))
        _shake_hands(handle, address.key, _ANSWER_SECONDS)
        keep_up(handle)
        # The lowest free descriptor: a killed process closes its descriptors in ascending order.
        # The leader should notice the loss before mpirun does, which then kills the other ranks:
        # the first lost rank is the one to blame.
        return Connection(fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3))


def other_end(connection: socket.socket) -> tuple[str, int]:
    """Return the address of the other end, and its process id as this pid namespace counts.

    The address is empty for a Unix socket. The id is 0 where it is not known: over TCP, on other
    systems than Linux, and where that process can't be seen from here.
    """
    if connection.family != socket.AF_UNIX:
        return str(connection.getpeername()[0]), 0
    if not hasattr(socket, "SO_PEERCRED"):
        return "", 0
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    return "", int(struct.unpack("iII", found)[0])


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


def _shake_hands(connection: socket.socket, key: bytes, seconds: float) -> None:
    """Do a rank's part within so many seconds.

    Raises:
        AuthenticationError, EOFError, OSError: The other end is not this world's leader, is gone,
            or does not answer.
    """
    deadline = time.monotonic() + seconds
    ours = secrets.token_bytes(NONCE_BYTES)
    connection.settimeout(seconds)
    connection.sendall(ours)
    answer = b""
    while len(answer) < 2 * NONCE_BYTES:
        # Whoever sends a byte from time to time does not get more time by it.
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(2 * NONCE_BYTES - len(answer))
        if not part:
            raise EOFError("the connection was closed")
        answer += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    theirs, proved = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proved, proof(key, b"leader", ours, theirs)):
        raise AuthenticationError("the other end did not prove that it knows the key")
    connection.sendall(proof(key, b"rank", ours, theirs))
    connection.settimeout(None)


def proof(key: bytes, sender: bytes, of_rank: bytes, of_leader: bytes) -> bytes:
    """Return the proof that a sender, ``leader`` or ``rank``, knows the key of two nonces."""
    return hmac.digest(key, sender + of_rank + of_leader, "sha256")


class Link:
    """Sends and receives the messages of a rank whose process does not depend on this leader.

    The rank may be a thread of the leader's process, or have the leases of a lender alone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending, self._is_patient = threading.Lock(), False

    def report(self, rank: int | None, directory: Path | str = "") -> Hello:
        """Tell the leader who this is; `Hello` says what the arguments mean."""
        host, machine = platform.node(), this_machine()
        hello = Hello(rank, os.getpid(), threading.get_ident(), host, machine, str(directory))
        self.send(hello)
        return hello

    def send(self, message: Any) -> None:
        """Send a message, which several threads may do; raise OSError if the leader is gone."""
        data = pickle.dumps(message, protocol=5)
        # A leader that takes in nothing is busy with others' large messages, or out of reach; TCP
        # does not tell these apart.
        is_patient = len(data) > _SMALL_BYTES
        with self._sending:
            if is_patient != self._is_patient and hasattr(socket, "TCP_USER_TIMEOUT"):
                self._is_patient = is_patient
                with socket.socket(fileno=os.dup(self._connection.fileno())) as handle:
                    if handle.family != socket.AF_UNIX:
                        most = (_BUSY_SECONDS if is_patient else _SILENT_SECONDS) * 1000
                        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, most)
            self._connection.send_bytes(data)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message; None if none came in time, a dismissal if no other can come."""
        try:
            if not self._connection.poll(timeout if timeout is None else max(timeout, 0)):
                return None
            return pickle.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
        except (EOFError, OSError):
            return Dismissal(1)

    def lose(self, error: Exception) -> None:
        """Take notice that a reply can't be sent; the next message is a dismissal then."""


class WatchedLink(Link):
    """The end of a rank whose process ends as soon as the leader is gone, even when it hangs.

    The control directory stays: the rank may just have closed its own descriptor of the connection.

    Args:
        connection: The connection to the leader.
        answer: Answers what the leader asks about the ranks of this host, in a thread.
        stopped: The seconds after which the process ends if a signal has stopped the leader. On
            another host it has sent nothing for ten times as long, as a library may keep all its
            threads from running for a while. They do not count while this process is stopped, too.
    """

    def __init__(
        self,
        connection: Connection,
        answer: Callable[[Examine], Examined],
        stopped: float = math.inf,
    ) -> None:
        super().__init__(connection)
        self._answer = answer
        with socket.socket(fileno=os.dup(connection.fileno())) as handle:
            self._leader, self._pid = other_end(handle)
        self._most_looks = stopped / _LOOK_SECONDS * (1 if self._pid else 10)
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True).start()

    def get(self, timeout: float | None = None) -> Any:
        """See `Link.get`."""
        try:
            message = self._messages.get(timeout=timeout if timeout is None else max(timeout, 0))
        except queue.Empty:
            return None
        if isinstance(message, Dismissal):  # it is not only for who waits at the moment
            self._messages.put(message)
        return message

    def _watch(self) -> None:
        """Receive messages in a thread of its own, to notice at once that the leader is gone."""
        try:
            for message in self._incoming():
                if isinstance(message, Examine):
                    self.send(self._answer(message))
                elif not isinstance(message, Alive):
                    self._messages.put(message)
                if isinstance(message, Dismissal):
                    return
        except (EOFError, OSError) as error:
            if reason := why_unreachable(error, self._leader):
                here = platform.node()
                self.lose(error, f"a rank on {here} can't reach its leader any more ({reason})")
            self._end()

    def _incoming(self) -> Iterator[Any]:
        """Return messages as they arrive; a leader may be stopped in the middle of one, too."""
        incoming = bytearray()
        while True:
            self._wait()
            part = os.read(self._connection.fileno(), _READ_BYTES)
            if not part:
                raise EOFError
            incoming += part
            yield from take_messages(incoming)

    def _wait(self) -> None:
        """Wait for bytes; end the process if the leader is stopped for too long."""
        looks = 0
        while self._most_looks < math.inf and not self._connection.poll(_LOOK_SECONDS):
            is_silent = not self._pid or process_state(self._pid) == "T"
            looks = looks + 1 if is_silent else 0
            if looks >= self._most_looks:
                how = "a signal has stopped it" if self._pid else "it has sent no sign of life"
                self.lose(TimeoutError(f"{how} for {looks * _LOOK_SECONDS:g} s"))

    def lose(self, error: Exception, what: str = "this rank has lost its leader") -> None:
        """End the process, because a reply can't be sent."""
        sys.stderr.write(f"{what}: {error}\n")
        sys.stderr.flush()
        self._end()

    def _end(self) -> NoReturn:
        # The work has something to keep first, and said so by a handler of its own.
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.default_int_handler):
            os.kill(os.getpid(), signal.SIGTERM)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(_LAST_SECONDS)
        os._exit(1)
