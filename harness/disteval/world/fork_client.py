"""One process that forks off ranks, and one that it has forked, as their leader sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from disteval.errors import WorldError
from disteval.world.fork_server import RankToFork, Ready
from disteval.world.interrupts import interrupted_later
from disteval.world.process import import_code, import_path
from disteval.world.watched import Watched

CLOSE_SECONDS = 5.0
_ANSWER_SECONDS = 60.0  # as long as other ranks may take to start; imports come first
_STOPPED_SECONDS = 0.5
_POLL_SECONDS = 0.01
_COMMAND_BYTES = 500  # room in which a rank shows its own command line

_SERVER_CODE = (
    import_code("sys.argv[1]", "disteval.world.fork_server import serve")
    + "sys.exit(serve(int(sys.argv[2]), sys.argv[5:], int(sys.argv[3])))"
)


class Server:
    """The leader's end of one server, which answers one question at a time."""

    def __init__(
        self, libraries: Sequence[str], environment: dict[str, str], watched: Watched
    ) -> None:
        self._connection, theirs = Pipe()
        self._lock = threading.Lock()
        self._asked = 0
        self._failed = False
        self._ready: Ready | None = None
        output = os.memfd_create("imports")
        try:
            with interrupted_later(), theirs:
                given = [theirs.fileno(), output]
                words = [import_path(), *map(str, given), " " * _COMMAND_BYTES, *libraries]
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _SERVER_CODE, *words],
                    env=environment,
                    pass_fds=given,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                watched.add(self.process.pid)
        finally:
            os.close(output)

    def is_safe(self) -> bool:
        """Return whether the server can be forked and answers; wait until it has imported."""
        with self._lock:  # also to look: another thread may wait for the one message
            if self._ready is None:
                found = Ready(False, frozenset())
                with contextlib.suppress(OSError, EOFError):
                    found = self._answer(0)
                self._ready = found
        return self._ready.safe and not self.is_lost()

    def is_lost(self) -> bool:
        """Return whether the server has ended, though it was safe to be forked."""
        ended = self._failed or self.process.poll() is not None
        return ended and bool(self._ready and self._ready.safe)

    def may_import_from(self, entry: str) -> bool:
        """Return whether a module that this server has imported may be in a folder of the path."""
        if self._ready is None or not Path(entry).is_dir():
            return True
        with contextlib.suppress(OSError):
            names = {found.name.partition(".")[0] for found in Path(entry).iterdir()}
            return not names.isdisjoint(self._ready.modules)
        return True

    def ask(self, question: Any) -> Any:
        """Return the answer to a question, see `fork_server`.

        Raises:
            EOFError, OSError: The server has ended, or does not answer.
        """
        with self._lock:
            self._asked += 1
            try:
                self._connection.send((self._asked, question))
                return self._answer(self._asked)
            except (EOFError, OSError):
                self._failed = True
                raise

    def _answer(self, wanted: int) -> Any:
        """Receive the answer of that number; earlier ones nobody waits for any more."""
        deadline, left = time.monotonic() + _ANSWER_SECONDS, _ANSWER_SECONDS
        while left > 0:
            left = deadline - time.monotonic()
            if self._connection.poll(min(max(left, 0.0), _STOPPED_SECONDS)):
                number, answer = self._connection.recv()
                if number == wanted:
                    return answer
            else:
                self.process.send_signal(signal.SIGCONT)  # somebody may have stopped it
        self.process.kill()  # what it did later would not be known here
        raise TimeoutError("no answer")

    def close(self) -> None:
        """Wait until the server, which was terminated, has ended; kill it if that takes long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_SECONDS)
        self.process.kill()
        self.process.wait()
        with self._lock:
            self._connection.close()


class Forked:
    """A process that a server has forked, with the methods of `subprocess.Popen` that are used.

    Raises:
        OSError: There is no memory or process left.
        WorldError: The server has ended, or does not answer.
    """

    def __init__(self, server: Server, order: RankToFork) -> None:
        self._server = server
        self._status: int | None = None
        try:
            answer = server.ask(order)
        except (EOFError, OSError) as error:
            raise WorldError(
                f"rank {order.rank} was not started: process {server.process.pid}, which forks "
                f"ranks, has ended or did not answer within {_ANSWER_SECONDS:g} s; see whether "
                f"the system killed it for lack of memory, and start the world again",
                lost=[order.rank],
            ) from error
        if isinstance(answer, str):
            raise OSError(answer)
        self.pid: int = answer

    def poll(self) -> int | None:
        """See `subprocess.Popen.poll`."""
        if self._status is None:
            try:
                self._status = self._server.ask(self.pid)
            except (EOFError, OSError):  # the system kills the ranks of a server that has ended
                self._status = -signal.SIGKILL
        return self._status

    def wait(self, timeout: float) -> int:
        """See `subprocess.Popen.wait`."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked rank", timeout)
            time.sleep(_POLL_SECONDS)
        return status
