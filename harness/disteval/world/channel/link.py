"""A rank's end of the connection to its leader, or to a lender of leases."""

from __future__ import annotations

import math
import os
import platform
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from disteval.host import process_state, this_machine
from disteval.world.channel.connection import (
    address_of_other_end,
    process_at_other_end,
    why_unreachable,
)
from disteval.world.channel.messages import (
    Dismissal,
    Examine,
    Examined,
    Hello,
    receive,
    send,
)

_LOOK_SECONDS = 1.0
_LAST_SECONDS = 2.0  # in which a rank that handles SIGTERM keeps what it has


class Link:
    """Sends and receives the messages of a rank whose process does not depend on this leader.

    The rank may be a thread of the leader's process, or have the leases of a lender alone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def report(self, rank: int | None, directory: Path | str = "") -> Hello:
        """Tell the leader who this is; `Hello` says what the arguments mean."""
        host, machine = platform.node(), this_machine()
        hello = Hello(rank, os.getpid(), threading.get_ident(), host, machine, str(directory))
        self.send(hello)
        return hello

    def send(self, message: Any) -> None:
        """Send a message; raise OSError if the leader is gone."""
        send(self._connection, message)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message; None if none came in time, a dismissal if no other can come."""
        try:
            if not self._connection.poll(timeout if timeout is None else max(timeout, 0)):
                return None
            return receive(self._connection)
        except (EOFError, OSError):
            return Dismissal(1)

    def lose(self, error: Exception) -> None:
        """Take notice that a reply can't be sent; the next message is a dismissal then."""


class WatchedLink(Link):
    """The end of a rank whose process ends as soon as the leader is gone, even when it hangs.

    The control directory stays: the rank may just have closed its own descriptor of the connection.

    Args:
        connection: The connection to the leader.
        on_lost: Called before the process ends.
        answer: Answers what the leader asks about the ranks of this host, in a thread.
        stopped: The seconds after which the process ends if a signal has stopped the leader, where
            it is on this host. They do not count while this process is stopped, too.
    """

    def __init__(
        self,
        connection: Connection,
        on_lost: Callable[[], None],
        answer: Callable[[Examine], Examined],
        stopped: float = math.inf,
    ) -> None:
        super().__init__(connection)
        self._on_lost = on_lost
        self._answer = answer
        self._most_looks = stopped / _LOOK_SECONDS
        with socket.socket(fileno=os.dup(connection.fileno())) as handle:
            self._leader = address_of_other_end(handle)
            self._pid = process_at_other_end(handle)
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
            while True:
                self._wait()
                message = receive(self._connection)
                if isinstance(message, Examine):
                    self.send(self._answer(message))
                    continue
                self._messages.put(message)
                if isinstance(message, Dismissal):
                    return
        except (EOFError, OSError) as error:
            if reason := why_unreachable(error, self._leader):
                here = platform.node()
                self.lose(error, f"a rank on {here} can't reach its leader any more ({reason})")
            self._end()

    def _wait(self) -> None:
        """Wait for a message; end the process if the leader is stopped for too long."""
        looks = 0
        while self._most_looks < math.inf and not self._connection.poll(_LOOK_SECONDS):
            looks = looks + 1 if process_state(self._pid) == "T" else 0
            if looks >= self._most_looks:
                seconds = looks * _LOOK_SECONDS
                self.lose(TimeoutError(f"a signal has stopped it, {seconds:g} s ago"))

    def lose(self, error: Exception, what: str = "this rank has lost its leader") -> None:
        """End the process, because a reply can't be sent."""
        sys.stderr.write(f"{what}: {error}\n")
        sys.stderr.flush()
        self._end()

    def _end(self) -> NoReturn:
        self._on_lost()
        # The work has something to keep first, and said so by a handler of its own.
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.default_int_handler):
            os.kill(os.getpid(), signal.SIGTERM)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(_LAST_SECONDS)
        os._exit(1)
