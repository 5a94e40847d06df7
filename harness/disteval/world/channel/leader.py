"""The leader's end of the connections to all ranks."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.errors import WorldError
from disteval.world.channel.connection import (
    address_of_other_end,
    bound_waits,
    process_at_other_end,
    write_address,
)
from disteval.world.channel.listener import Listener
from disteval.world.channel.messages import (
    Dismissal,
    Examine,
    Examined,
    Hello,
    KeyValue,
    Note,
    Order,
    Progress,
    receive,
    send,
    unpacked,
)

OnProgress = Callable[[int, int, int | None], None]
"""Called by the leader with a rank, the samples it has done, and the samples of its shard."""

OnNote = Callable[[int, Any], None]
"""Called by the leader with a rank, and the value of its note."""

_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 3600.0
_NEXT_SECONDS = 0.1  # that a second rank may be frozen before an order


class Channel:
    """The connections of a leader to its ranks, on which it sends orders and receives replies.

    Args:
        world_size: The number of ranks.
        replaces: Whether a rank that reports again replaces the one of before, which is lost.

    Attributes:
        hellos: The first message of each rank that has reported.
        gone: The ranks from which nothing more can be received, and the error of receiving.
    """

    def __init__(self, world_size: int, *, replaces: bool = False) -> None:
        self.hellos: dict[int, Hello] = {}
        self.gone: dict[int, Exception] = {}
        self._replaces = replaces
        self._values: dict[str, KeyValue] = {}  # what ranks have published, by key
        self._waiting: dict[str, list[int]] = {}  # the ranks that wait for a key
        self._world_size = world_size
        self._connections: dict[int, Connection] = {}
        # Linux's selector returns events in the order in which they happened, so it is known which
        # rank was lost first.
        self._selector = selectors.DefaultSelector()
        self._limit = 0.0  # seconds of the waits within a message; setting them costs time
        self._listener: Listener | None = None

    def listen(self, directory: Path, host: str | None, port: int = 0, key: bytes = b"") -> None:
        """Listen for the ranks, see `Listener`, and write the address to the directory."""
        self._listener = Listener(directory, host, self._world_size, port, key)
        write_address(directory, self._listener.address)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def wait_for_ranks(self, inside: Sequence[Connection], give_up: Callable[[], bool]) -> bool:
        """Wait until every rank has reported, and return True, or until ``give_up()`` is true.

        Ranks that are threads of this process have their connections already.

        Raises:
            WorldError: Two processes report as the same rank, or one as none of these ranks.
        """
        self.take_in(inside)
        while len(self._connections) < self._world_size and not give_up():
            for _ in self.poll(_POLL_SECONDS):
                pass
        assert self._listener is not None
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None
        return len(self._connections) == self._world_size

    def take_in(self, inside: Sequence[Connection]) -> None:
        """Take the connections of ranks that are threads of this process."""
        for connection in inside:
            self._add(receive(connection), connection)

    def _admit(self) -> Iterator[tuple[Hello, Connection]]:
        for connection in self._listener.admit(0.0) if self._listener else ():
            with contextlib.suppress(EOFError, OSError):  # it died; the deadline decides
                hello = receive(connection)
                # In a container of its own a rank has another number than here.
                if pid := process_at_other_end(connection):
                    hello = hello._replace(pid=pid, machine="")
                yield hello._replace(address=address_of_other_end(connection)), connection

    def _add(self, hello: Hello, connection: Connection) -> None:
        if hello.rank in self.hellos or hello.rank not in range(self._world_size):
            raise WorldError(
                f"process {hello.pid} reported as rank {hello.rank}, and each of the ranks 0 to "
                f"{self._world_size - 1} reports once; start one process for each rank"
            )
        self.hellos[hello.rank] = hello
        self._connections[hello.rank] = connection
        self._selector.register(connection, selectors.EVENT_READ, hello.rank)

    def poll(self, seconds: float) -> Iterator[tuple[int, Any]]:
        """Wait so long for messages, and yield each with its rank.

        The first of a rank is its `Hello`. The last of a rank that is lost, or frozen within a
        message, is the error of receiving.
        """
        self._check_open()
        # epoll takes at most 24 days.
        for key, _ in self._selector.select(min(seconds, _LONGEST_SECONDS)):
            if key.fileobj is self._listener:
                continue
            self._check_open()
            try:
                message = receive(self._connections[key.data])
            except (EOFError, OSError) as error:
                self._selector.unregister(key.fileobj)
                self.gone[key.data] = message = error
            yield key.data, message
        self._check_open()
        for hello, connection in self._admit():
            if self._replaces and hello.rank in self.hellos:
                del self.hellos[hello.rank]
                before = self._connections.pop(hello.rank)
                if self.gone.pop(hello.rank, None) is None:
                    self._selector.unregister(before)
                before.close()
            self._add(hello, connection)
            yield hello.rank, hello

    def _check_open(self) -> None:
        if self._selector.get_map() is None:  # it was closed by a callback, or by another thread
            raise WorldError("this world was closed before its ranks had carried out their order")

    def examine(self, questions: Mapping[int, Examine], seconds: float) -> dict[int, Examined]:
        """Ask ranks what they see on their hosts, and return the answers that come in time.

        Other messages that they send meanwhile are dropped, since their order has failed.
        """
        for rank, question in questions.items():
            self.send(rank, question, seconds)
        answers: dict[int, Examined] = {}
        deadline = time.monotonic() + seconds
        while questions.keys() - answers.keys() - self.gone.keys():
            if (left := deadline - time.monotonic()) <= 0:
                break
            heard = self.poll(left)
            answers |= {r: m for r, m in heard if isinstance(m, Examined) and r in questions}
        return answers

    def send(self, rank: int, message: Order | Examine, seconds: float) -> None:
        """Send one rank a message; waits within its messages are limited to so many seconds.

        A rank that is lost or frozen is noticed when its reply is received.
        """
        self._limit = 0.0
        if rank in self.gone:
            return
        with contextlib.suppress(OSError):
            bound_waits(self._connections[rank], seconds)
            send(self._connections[rank], message)

    def order_all(self, orders: Sequence[Order], timeout: float) -> None:
        """Send each rank its order, as `send` does."""
        limit = timeout
        for rank, connection in self._connections.items():
            with contextlib.suppress(OSError):
                if limit != self._limit:
                    bound_waits(connection, limit)
                try:
                    send(connection, orders[rank])
                except BlockingIOError:  # so this order fails, and no other rank may hold it up
                    limit = min(timeout, _NEXT_SECONDS)
        self._limit = limit

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
        while waiting and message.key in self._values:
            with contextlib.suppress(OSError):  # a lost rank is noticed by its missing reply
                send(self._connections[waiting.pop()], self._values[message.key])

    def forget_values(self) -> None:
        """Forget all published values, because the ranks are about to join another group."""
        self._values.clear()
        self._waiting.clear()

    def dismiss(self, exit_code: int) -> None:
        """Tell every rank that no more orders follow."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # a rank that is gone needs no dismissal
                send(connection, Dismissal(exit_code))

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections.values():
            connection.close()
