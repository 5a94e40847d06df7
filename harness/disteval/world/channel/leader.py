"""The leader's end of the channel: it listens for ranks, and waits for none of them."""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import resource
import secrets
import selectors
import socket
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.errors import WorldError
from disteval.world.channel.link import (
    NONCE_BYTES,
    Address,
    keep_up,
    other_end,
    proof,
    unix_address,
)
from disteval.world.channel.messages import (
    Alive,
    Dismissal,
    Examine,
    Examined,
    Hello,
    KeyValue,
    Note,
    Progress,
    encode,
    take_messages,
    unpacked,
)
from disteval.world.control_directory import opened

OnProgress = Callable[[int, int, int | None], None]
"""Called by the leader with a rank, the samples it has done, and the samples of its shard."""

OnNote = Callable[[int, Any], None]
"""Called by the leader with a rank, and the value of its note."""

_log = logging.getLogger("disteval.world")
_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 3600.0
_LIFE_SECONDS = 5.0
_VISIT_SECONDS = 30.0  # in which a connection must prove that it comes from a rank
_MOST_STRANGERS = 64  # that may stay connected beside the ranks
_FIRST_BYTES, _READ_BYTES = 1 << 12, 1 << 16
_MOST_READS = 64  # of one rank, before others have their turn


class Mailbox:
    """Sends and receives messages of one rank without ever waiting for it.

    Args:
        connection: A connection whose other end has proved to be a rank.

    Attributes:
        socket: The same.
        rank: The rank at the other end; None before its first message.
        unsent: What waits until the rank reads.
        is_writing: Whether the selector says when the rank reads.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.rank: int | None = None
        self.is_writing = False
        self._incoming = bytearray()
        self._sending = threading.RLock()
        self.unsent: deque[memoryview] = deque()
        self._broken: OSError | None = None  # why nothing can be sent

    @property
    def is_delivered(self) -> bool:
        """Whether the host of the rank has all that was sent, so that closing loses nothing.

        TCP discards what the other host has not acknowledged when the rank sends something to a
        closed connection. It is False for TCP where the system does not tell, as on macOS.
        """
        if self.unsent or self.socket.family == socket.AF_UNIX:
            return not self.unsent
        try:
            return not any(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return False

    def send(self, data: Sequence[bytes]) -> None:
        """Send an encoded message as far as the rank reads; the rest waits for `flush`.

        It is not copied: the result of an evaluation may be large, and may wait for many ranks.
        That the rank is gone is noticed when it is received from.
        """
        with self._sending:
            self.unsent += map(memoryview, data)
            self.flush()

    def show_life(self) -> None:
        """Send that the leader is alive, unless messages wait; any thread may do this."""
        with self._sending:
            if not self.unsent:
                self.send(encode(Alive()))

    def flush(self) -> None:
        """Send what waits, as far as the rank reads."""
        with self._sending:
            try:
                while self.unsent:
                    sent = self.socket.send(self.unsent[0])
                    if sent == len(self.unsent[0]):
                        self.unsent.popleft()
                    else:
                        self.unsent[0] = self.unsent[0][sent:]
            except BlockingIOError:
                pass
            except OSError as error:  # what it has sent before may still be received
                self._broken = self._broken or error
                self.unsent.clear()

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
        found = take_messages(self._incoming)
        if ended is not None and not found:
            raise self._broken or ended  # else it is found again when the messages were taken
        return found


class Visitor:
    """A connection whose other end has not proved yet that it is a rank.

    Args:
        connection: The connection.
        key: The key that it has to know.
    """

    def __init__(self, connection: socket.socket, key: bytes) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.deadline = time.monotonic() + _VISIT_SECONDS
        self._steps = self._shake_hands(key)

    def is_rank(self) -> bool:
        """Take what has arrived; return whether it is proved.

        Raises:
            AuthenticationError, EOFError, OSError: The other end is not a rank, or is gone.
        """
        return next(self._steps, True)

    def _shake_hands(self, key: bytes) -> Generator[bool, None, None]:
        theirs = yield from self._receive()
        ours = secrets.token_bytes(NONCE_BYTES)
        self.socket.sendall(ours + proof(key, b"leader", theirs, ours))  # it fits any buffer
        answer = yield from self._receive()
        if not hmac.compare_digest(answer, proof(key, b"rank", theirs, ours)):
            raise AuthenticationError("a rank did not prove that it knows the key")

    def _receive(self) -> Generator[bool, None, bytes]:
        data = b""
        while len(data) < NONCE_BYTES:
            try:
                part = self.socket.recv(NONCE_BYTES - len(data))
            except BlockingIOError:
                yield False
                continue
            if not part:
                raise EOFError("the connection was closed")
            data += part
        return data


class Channel:
    """The connections of a leader to its ranks, which waits for none of them.

    A rank that is frozen, dies in the middle of a message or reads nothing delays no other rank.

    Args:
        world_size: The number of ranks.
        replaces: Whether a rank that reports again replaces the one of before, which is lost.

    Attributes:
        hellos: The first message of each of these ranks that has reported. Ranks that come without
            a number get higher ones.
        gone: The ranks from which nothing more can be received, and the error of receiving.
    """

    def __init__(self, world_size: int, *, replaces: bool = False) -> None:
        self.hellos: dict[int, Hello] = {}
        self.gone: dict[int, Exception] = {}
        self._replaces = replaces
        self._values: dict[str, KeyValue] = {}  # what ranks have published, by key
        self._waiting: dict[str, list[int]] = {}  # the ranks that wait for a key
        self._world_size = self._next_rank = world_size
        self._mailboxes: dict[int, Mailbox] = {}
        self._unknown: set[Mailbox] = set()  # that have not said which rank they are
        # Linux's selector returns events in the order in which they happened, so it is known which
        # rank was lost first.
        self._selector = selectors.DefaultSelector()
        self._is_closed = threading.Event()
        self._keys: dict[socket.socket, bytes] = {}  # of each socket that listens
        self._visitors: dict[Visitor, None] = {}  # the oldest first

    def listen(self, place: Address) -> Address:
        """Listen for ranks, at one of several places, and return it with its port and key.

        Raises:
            WorldError: It can't listen there, or not for so many ranks.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and self._world_size > limit:  # before any is started
            raise WorldError(
                f"{self._world_size} ranks need a connection to the leader each, which may have "
                f"{limit} open files; start fewer ranks, or raise the limit with `ulimit -n`"
            )
        listener, key = _listen(place), place.key or secrets.token_bytes(32)
        self._keys[listener] = key
        self._selector.register(listener, selectors.EVENT_READ)
        return replace(place, port=listener.getsockname()[1] if place.host else 0, key=key)

    def wait_for_ranks(self, inside: Sequence[Connection], give_up: Callable[[], bool]) -> bool:
        """Wait until every rank has reported, and return True, or until ``give_up()`` is true.

        Ranks that are threads of this process have their connections already.

        Raises:
            WorldError: Two processes report as the same rank, or one as none of these ranks.
        """
        self.take_in(*inside)
        while len(self.hellos) < self._world_size and not give_up():
            for _ in self.poll(_POLL_SECONDS):
                pass
        for visitor in [*self._visitors]:
            self._expel(visitor)
        for listener in self._keys:
            self._selector.unregister(listener)
            listener.close()
        self._keys = {}
        return len(self.hellos) == self._world_size

    def show_life(self) -> None:
        """Have a thread tell all ranks from now on that this process is alive."""

        def show() -> None:
            while not self._is_closed.wait(_LIFE_SECONDS):
                for mailbox in [*self._mailboxes.values()]:
                    mailbox.show_life()

        threading.Thread(target=show, daemon=True).start()

    def take_in(self, *connections: Connection | socket.socket) -> None:
        """Take connections whose other ends are known to be ranks, and close the originals."""
        for connection in connections:
            mailbox = Mailbox(socket.socket(fileno=os.dup(connection.fileno())))
            connection.close()
            self._unknown.add(mailbox)
            self._selector.register(mailbox.socket, selectors.EVENT_READ, mailbox)

    def poll(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """Wait so long for messages, and yield each with its rank.

        The first of a rank is its `Hello`. None says that a part of a large message has arrived, or
        was taken. The last of a rank that is lost is the error of receiving.
        """
        self._check_open()
        # epoll takes at most 24 days.
        for key, events in self._selector.select(min(seconds, _LONGEST_SECONDS)):
            self._check_open()
            if not isinstance(key.data, Mailbox):
                self._admit(key.fileobj, key.data)
                continue
            mailbox: Mailbox = key.data
            if mailbox.rank is not None and self._mailboxes[mailbox.rank] is not mailbox:
                continue  # it was replaced meanwhile
            error: Exception | None = None
            if events & selectors.EVENT_WRITE:
                mailbox.flush()
                self._note_unsent(mailbox)
            try:
                found = mailbox.receive() if events & selectors.EVENT_READ else []
                if mailbox.rank is None and found:
                    found[0] = _complete(found[0], mailbox.socket)
            except (EOFError, OSError) as ended:
                error, found = ended, []
                self._selector.unregister(mailbox.socket)
            if mailbox.rank is None:
                if error is not None:  # it died; the deadline decides
                    self._unknown.discard(mailbox)
                    mailbox.socket.close()
                if not found:
                    continue
                found[0] = self._add(found[0], mailbox)
            rank = mailbox.rank
            assert rank is not None
            if error is not None:
                self.gone[rank] = error
            for message in found or [error]:
                yield rank, message
        self._check_open()

    def _admit(self, listener: Any, visitor: Visitor | None) -> None:
        """Accept a connection, or take it in when it was proved that its other end is a rank.

        Nobody keeps a rank waiting by connecting and then saying nothing, or too little.
        """
        if visitor is None:
            try:
                self._accept(listener)
            except WorldError as error:
                if not self._replaces:
                    raise
                _log.warning("%s", error)  # the ranks that are there go on
        elif visitor in self._visitors:
            try:
                if visitor.is_rank():
                    self._forget(visitor)
                    keep_up(visitor.socket)
                    self.take_in(visitor.socket)
            except (AuthenticationError, EOFError, OSError):
                self._expel(visitor)
        now = time.monotonic()
        for late in [one for one in self._visitors if one.deadline < now]:
            self._expel(late)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
            os.close(os.dup(connection.fileno()))  # another is needed for a moment
        except (BlockingIOError, ConnectionError):  # it is gone again
            return
        except OSError as error:
            raise WorldError(
                f"the leader can't open another connection ({error}), and it needs one for each "
                f"rank; raise the limit with `ulimit -n`, or start fewer ranks"
            ) from error
        visitor = Visitor(connection, self._keys[listener])
        self._selector.register(connection, selectors.EVENT_READ, visitor)
        self._visitors[visitor] = None
        if len(self._visitors) > self._world_size + _MOST_STRANGERS:
            # A rank is done in a moment, so the oldest is not one.
            self._expel(next(iter(self._visitors)))

    def _expel(self, visitor: Visitor) -> None:
        if visitor in self._visitors:
            self._forget(visitor)
        visitor.socket.close()

    def _forget(self, visitor: Visitor) -> None:
        del self._visitors[visitor]
        self._selector.unregister(visitor.socket)

    def _add(self, hello: Hello, mailbox: Mailbox) -> Hello:
        self._unknown.discard(mailbox)
        rank = hello.rank
        if rank is None:
            rank, self._next_rank = self._next_rank, self._next_rank + 1
        elif rank in self.hellos and self._replaces:
            before = self._mailboxes.pop(rank)
            if self.gone.pop(rank, None) is None:
                self._selector.unregister(before.socket)
            before.socket.close()
        elif rank in self.hellos or rank not in range(self._world_size):
            raise WorldError(
                f"process {hello.pid} reported as rank {rank}, and each of the ranks 0 to "
                f"{self._world_size - 1} reports once; start one process for each rank"
            )
        hello = hello._replace(rank=rank)
        if rank < self._world_size:
            self.hellos[rank] = hello
        mailbox.rank = rank
        self._mailboxes[rank] = mailbox
        return hello

    def _check_open(self) -> None:
        if self._selector.get_map() is None:  # it was closed by a callback, or by another thread
            raise WorldError("this world was closed before its ranks had carried out their order")

    def examine(self, questions: Mapping[int, Examine], seconds: float) -> dict[int, Examined]:
        """Ask ranks what they see on their hosts, and return the answers that come in time.

        Other messages that they send meanwhile are dropped, since their order has failed.
        """
        for rank, question in questions.items():
            self.send(question, rank)
        answers: dict[int, Examined] = {}
        deadline = time.monotonic() + seconds
        while questions.keys() - answers.keys() - self.gone.keys():
            if (left := deadline - time.monotonic()) <= 0:
                break
            heard = self.poll(left)
            answers |= {r: m for r, m in heard if isinstance(m, Examined) and r in questions}
        return answers

    def send(self, message: Any, *ranks: int) -> None:
        """Send ranks one message; what they do not read at once is sent by `poll`.

        That a rank is gone is noticed when its reply is received.
        """
        data = encode(message)
        for rank in ranks:
            if rank in self._mailboxes and rank not in self.gone:
                self._mailboxes[rank].send(data)
                self._note_unsent(self._mailboxes[rank])

    def _note_unsent(self, mailbox: Mailbox) -> None:
        """Have the selector say when a rank reads, if messages wait for that."""
        if bool(mailbox.unsent) != mailbox.is_writing:
            mailbox.is_writing = not mailbox.is_writing
            events = selectors.EVENT_READ | (mailbox.is_writing and selectors.EVENT_WRITE)
            self._selector.modify(mailbox.socket, events, mailbox)

    def has_delivered(self, rank: int) -> bool:
        """Return whether the host of a rank has all that was sent to it, or no rank is there."""
        there = rank in self._mailboxes and rank not in self.gone
        return not there or self._mailboxes[rank].is_delivered

    def take(
        self, rank: int, message: Any, on_progress: OnProgress | None, on_note: OnNote | None
    ) -> None:
        """Pass on a progress message or a note; publish a value, or answer a question for one."""
        if isinstance(message, Progress):
            if on_progress is not None:
                on_progress(rank, message.done, message.total)
        elif isinstance(message, Note):
            if on_note is not None:
                on_note(rank, unpacked(message.value, f"a note of rank {rank}"))
        elif isinstance(message, KeyValue):  # an answer to `examine` may come late
            waiting = self._waiting.setdefault(message.key, [])
            if message.value is None:
                waiting.append(rank)
            else:
                self._values[message.key] = message
            if message.key in self._values:
                self.send(self._values[message.key], *waiting)
                waiting.clear()

    def forget_values(self) -> None:
        """Forget all published values, because the ranks are about to join another group."""
        self._values.clear()
        self._waiting.clear()

    def dismiss(self, exit_code: int) -> None:
        """Tell every rank that no more orders follow."""
        self.send(Dismissal(exit_code), *self.hellos)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed.set()
        self._selector.close()
        for listener in self._keys:
            listener.close()
        for visitor in self._visitors:
            visitor.socket.close()
        for mailbox in (*self._unknown, *self._mailboxes.values()):
            mailbox.socket.close()


def _complete(message: Any, connection: socket.socket) -> Hello:
    """Add to the first message of a rank what its connection tells.

    Raises:
        OSError: It is another message, or the rank is gone.
    """
    if not isinstance(message, Hello):
        raise ConnectionError("it sent another message before its Hello")
    address, pid = other_end(connection)
    hello = message._replace(address=address)
    # In a container of its own a rank has another number than here.
    return hello._replace(pid=pid, machine="") if pid and pid != os.getpid() else hello


def _listen(place: Address) -> socket.socket:
    if place.host is not None:
        at = place.host, place.port
        try:
            listener = socket.create_server(at, backlog=socket.SOMAXCONN)
        except OSError as error:
            raise WorldError(
                f"the leader can't listen at {at[0]}:{at[1]} ({error.strerror}); choose another "
                f"port or address, or end the process that uses it"
            ) from error
    else:
        listener = socket.socket(socket.AF_UNIX)
        with opened(Path(place.folder)) as descriptor:
            listener.bind(unix_address(Path(place.folder), descriptor))
        listener.listen(socket.SOMAXCONN)
    listener.setblocking(False)
    return listener
