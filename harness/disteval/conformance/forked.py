"""Ranks that are forked off processes which have imported the costly libraries already.

A check starts about thirty ranks. Where each has to import torch, that takes most of its time.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import numpy as np

from disteval.errors import WorldError
from disteval.worlds.cores import thread_variables
from disteval.worlds.environment import outside_environment
from disteval.worlds.launchers.local import LocalLauncher
from disteval.worlds.process import become_rank, import_code, import_path

# Neighbouring ranks come from different servers: they share no hash seed and no state that an
# import has left, just as ranks that a user starts.
_SERVERS = 2
_POLL_SECONDS = 0.01
_CLOSE_SECONDS = 5.0
_ANSWER_SECONDS = 60.0  # as long as other ranks may take to start; imports come first

_LIBRARIES = ("torch", "torch.distributed")

_SERVER_CODE = (
    import_code("sys.argv[2]", "disteval.conformance.forked import serve")
    + "serve(int(sys.argv[1]), sys.argv[3:])"
)


class ForkServers:
    """Processes that fork off ranks on demand; use it as a context manager.

    Args:
        libraries: The modules that the processes import first, where this process has imported the
            package; importing them must start no thread.
    """

    def __init__(self, libraries: Sequence[str] = _LIBRARIES) -> None:
        libraries = [name for name in libraries if name.partition(".")[0] in sys.modules]
        self._servers = [_Server(libraries) for _ in range(_SERVERS)]
        self._closed = False

    def launcher(self) -> LocalLauncher:
        """Return a launcher for one world, of ranks that are forked where that is safe.

        Raises:
            WorldError: The servers were closed meanwhile.
        """
        safe = all(server.safe for server in self._servers)
        if self._closed:
            raise WorldError("the check has ended, so it starts no more ranks")
        return _ForkLauncher(self._servers) if safe else LocalLauncher()

    def close(self) -> None:
        """Terminate every rank that is left, and the servers; closing twice is fine."""
        self._closed = True
        for server in self._servers:
            server.hang_up()
        for server in self._servers:
            server.close()

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ForkLauncher(LocalLauncher):
    """Every rank is a child of a server, in a session of its own."""

    def __init__(self, servers: list[_Server]) -> None:
        super().__init__()
        self._servers = servers

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Have the servers fork a process for each rank."""
        self._log = directory / "launcher.log"
        self._log.touch()
        environment = outside_environment() | thread_variables(world_size, threads)
        for rank in range(world_size):
            server = self._servers[rank % len(self._servers)]
            process: Any = server.fork((directory, rank, environment))
            self._processes.append(process)
        return []


class _Server:
    """The leader's end of one server."""

    def __init__(self, libraries: list[str]) -> None:
        self._connection, theirs = Pipe()
        self._lock = threading.Lock()
        self._statuses: dict[int, int] = {}
        self._safe: bool | None = None
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _SERVER_CODE,
                    str(theirs.fileno()),
                    import_path(),
                    *libraries,
                ],
                env=outside_environment() | thread_variables(1, 1),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def safe(self) -> bool:
        """Whether the server is there and has one thread; waits until it has imported."""
        with self._lock:
            if self._safe is None:
                try:
                    self._safe = bool(self._receive())
                except (EOFError, OSError):
                    self._safe = False
            return self._safe

    def fork(self, what: tuple[Path, int, dict[str, str]]) -> _Forked:
        """Fork a process that becomes a rank.

        Raises:
            WorldError: The server has ended, or does not answer.
        """
        with self._lock:
            try:
                if not self._safe:
                    raise EOFError("it failed before")
                self._connection.send(what)
                while (pid := self._take()) is None:
                    pass
            except (EOFError, OSError) as error:
                self._safe = False  # a late answer would be taken for the next one
                raise WorldError(
                    f"rank {what[1]} was not started: process {self._process.pid}, which forks "
                    f"ranks, has ended or did not answer within {_ANSWER_SECONDS:g} s; see whether "
                    f"the system killed it for lack of memory, and run the check again"
                ) from error
            return _Forked(self, pid)

    def status(self, pid: int) -> int | None:
        """Return the exit status of a process that the server has forked; None while it runs."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            while pid not in self._statuses and self._connection.poll():
                self._take()
        # A server that has ended in order has killed every rank that was left.
        missing = -signal.SIGKILL if self._process.returncode == 0 else None
        return self._statuses.get(pid, missing)

    def _take(self) -> int | None:
        """Take one message: the id of a new process, or the status of one that has ended."""
        pid, status = self._receive()
        if status is None:
            return int(pid)
        self._statuses[pid] = os.waitstatus_to_exitcode(status)
        return None

    def _receive(self) -> Any:
        if not self._connection.poll(_ANSWER_SECONDS):
            raise TimeoutError("no answer")
        return self._connection.recv()

    def hang_up(self) -> None:
        """Have the server terminate the ranks that are left and end, whoever waits for it now."""
        if self._connection.closed:
            return
        # Closing the descriptor would not wake a thread that waits for an answer.
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
        if self._safe is None:  # it may still be importing, and has forked nothing
            self._process.kill()

    def close(self) -> None:
        """Wait until the server has ended after `hang_up`, and kill it if that takes too long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self._process.kill()
        self._process.wait()
        with self._lock:
            self._connection.close()


class _Forked:
    """A process that a server has forked, with the methods of `subprocess.Popen` that are used."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """See `subprocess.Popen.poll`."""
        return self._server.status(self.pid)

    def wait(self, timeout: float) -> int:
        """See `subprocess.Popen.wait`."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked rank", timeout)
            time.sleep(_POLL_SECONDS)
        return status


def serve(descriptor: int, libraries: list[str]) -> None:
    """Import libraries, then fork ranks until the leader closes the connection or has ended."""
    for name in libraries:
        importlib.import_module(name)
    connection = Connection(descriptor)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    connection.send(len(list(Path("/proc/self/task").iterdir())) == 1)
    running: dict[int, Path] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            ready = wait([connection, reader])
            if reader in ready:
                os.read(reader, 4096)
                _report_ended(connection, running)
            if connection in ready:
                directory, rank, environment = connection.recv()
                try:
                    pid = os.fork()
                except OSError:  # there is no memory left; the ranks of other worlds go on
                    os._exit(1)
                if pid == 0:
                    os._exit(_become(connection, directory, rank, environment))
                running[pid] = directory
                connection.send((pid, None))
    # A rank that is stopped, or has not reached the leader yet, can't notice that it is gone.
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for directory in running.values():
        shutil.rmtree(directory, ignore_errors=True)


def _report_ended(connection: Connection, running: dict[int, Path]) -> None:
    with contextlib.suppress(ChildProcessError):  # there are no children left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            del running[ended[0]]
            connection.send(ended)


def _become(connection: Connection, directory: Path, rank: int, environment: dict[str, str]) -> int:
    """Be a rank, as if the process had just been started; return its exit status."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        with (directory / "launcher.log").open("ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        os.environ.clear()
        os.environ.update(environment)
        np.random.seed()
        return become_rank(directory, rank)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
