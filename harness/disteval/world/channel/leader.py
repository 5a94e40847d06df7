"""The leader's end of the connections to all ranks, whatever they do for it."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.errors import WorldError
from disteval.world.channel.connection import (
    Address,
    address_of_other_end,
    process_at_other_end,
)
from disteval.world.channel.listener import Listener
from disteval.world.channel.mailbox import Mailbox
from disteval.world.channel.messages import (
    Dismissal,
    Examine,
    Examined,
    Hello,
    KeyValue,
    Note,
    Progress,
    encode,
    unpacked,
)

OnProgress = Callable[[int, int, int | None], None]
"""Called by the leader with a rank, the samples it has done, and the samples of its shard."""

OnNote = Callable[[int, Any], None]
"""Called by the leader with a rank, and the value of its note."""

_log = logging.getLogger("disteval.world")
_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 3600.0


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
        self._listeners: list[Listener] = []

    def listen(
        self, host: str | None, port: int = 0, key: bytes = b"", directory: Path | None = None
    ) -> Address:
        """Listen for ranks, see `Listener`, and return at which address; there may be several."""
        self._listeners.append(Listener(self._world_size, host, port, key, directory))
        self._selector.register(self._listeners[-1], selectors.EVENT_READ, self._listeners[-1])
        return self._listeners[-1].address

    def wait_for_ranks(self, inside: Sequence[Connection], give_up: Callable[[], bool]) -> bool:
        """Wait until every rank has reported, and return True, or until ``give_up()`` is true.

        Ranks that are threads of this process have their connections already.

        Raises:
            WorldError: Two processes report as the same rank, or one as none of these ranks.
        """
        self.take_in(inside)
        while len(self.hellos) < self._world_size and not give_up():
            for _ in self.poll(_POLL_SECONDS):
                pass
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners = []
        return len(self.hellos) == self._world_size

    def take_in(self, connections: Sequence[Connection]) -> None:
        """Take connections whose other ends are ranks of this process, and close the originals."""
        for connection in connections:
            self._take_in(socket.socket(fileno=os.dup(connection.fileno())))
            connection.close()

    def _take_in(self, connection: socket.socket) -> None:
        mailbox = Mailbox(connection)
        self._unknown.add(mailbox)
        self._selector.register(connection, selectors.EVENT_READ, mailbox)

    def poll(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """Wait so long for messages, and yield each with its rank.

        The first of a rank is its `Hello`. None says that a part of a large message has arrived, or
        was taken. The last of a rank that is lost is the error of receiving.
        """
        self._check_open()
        # epoll takes at most 24 days.
        for key, events in self._selector.select(min(seconds, _LONGEST_SECONDS)):
            self._check_open()
            if isinstance(key.data, Listener):
                self._admit(key.data)
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
                    mailbox.close()
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

    def _admit(self, listener: Listener) -> None:
        try:
            for connection in listener.admit():
                self._take_in(connection)
        except WorldError as error:
            if not self._replaces:
                raise
            _log.warning("%s", error)  # the ranks that are there go on

    def _add(self, hello: Hello, mailbox: Mailbox) -> Hello:
        self._unknown.discard(mailbox)
        rank = hello.rank
        if rank is None:
            rank, self._next_rank = self._next_rank, self._next_rank + 1
        elif rank in self.hellos and self._replaces:
            before = self._mailboxes.pop(rank)
            if self.gone.pop(rank, None) is None:
                self._selector.unregister(before.socket)
            before.close()
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
        if mailbox.has_unsent != mailbox.is_writing:
            mailbox.is_writing = mailbox.has_unsent
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
            self._exchange(rank, message)

    def _exchange(self, rank: int, message: KeyValue) -> None:
        """Take a published value or a question, and answer the ranks whose key is known now."""
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
        self._selector.close()
        for listener in self._listeners:
            listener.close()
        for mailbox in (*self._unknown, *self._mailboxes.values()):
            mailbox.close()


def _complete(message: Any, connection: socket.socket) -> Hello:
    """Add to the first message of a rank what its connection tells.

    Raises:
        OSError: It is another message, or the rank is gone.
    """
    if not isinstance(message, Hello):
        raise ConnectionError("it sent another message before its Hello")
    hello = message._replace(address=address_of_other_end(connection))
    # In a container of its own a rank has another number than here.
    pid = process_at_other_end(connection)
    return hello._replace(pid=pid, machine="") if pid and pid != os.getpid() else hello
