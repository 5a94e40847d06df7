"""Ranks that are forked off processes which have imported the costly libraries already.

A check starts about thirty ranks. Where each has to import torch, that takes most of its time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from disteval.errors import WorldError
from disteval.worlds.cores import thread_variables
from disteval.worlds.environment import outside_environment
from disteval.worlds.launchers.local import LocalLauncher
from disteval.worlds.process import become_rank, import_code, import_path
from disteval.worlds.watched import Watched

# Neighbouring ranks come from different servers: they share no hash seed and no state that an
# import has left, just as ranks that a user starts.
_SERVERS = 2
_POLL_SECONDS = 0.01
_CLOSE_SECONDS = 5.0
_ANSWER_SECONDS = 60.0  # as long as other ranks may take to start; imports come first

_LIBRARIES = ("torch", "torch.distributed", "jax", "tensorflow", "paddle")

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
        self._watched = Watched(None)
        self._servers = [_Server(libraries, self._watched) for _ in range(_SERVERS)]
        self._closed = False

    def launcher(self) -> LocalLauncher:
        """Return a launcher for one world, of ranks that are forked where that is safe.

        Raises:
            WorldError: The servers were closed meanwhile.
        """
        safe = all(server.is_safe() for server in self._servers)
        if self._closed:
            raise WorldError("the check has ended, so it starts no more ranks")
        return _ForkLauncher(self._servers) if safe else LocalLauncher()

    def close(self) -> None:
        """Terminate every rank that is left, and the servers; closing twice is fine."""
        self._closed = True
        for server in self._servers:
            server.process.terminate()
        for server in self._servers:
            server.close()
        self._watched.kill_all(_CLOSE_SECONDS)
        self._watched.end()

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
        variables = outside_environment() | thread_variables(world_size, threads)
        variables |= self.watched.environment()
        for rank in range(world_size):
            forked: Any = _Forked(self._servers[rank % _SERVERS], directory, rank, variables)
            self._processes.append(forked)
            self.watched.add(forked.pid)
        return []


class _Server:
    """The leader's end of one server, which answers one question at a time."""

    def __init__(self, libraries: list[str], watched: Watched) -> None:
        self._connection, theirs = Pipe()
        self._lock = threading.Lock()
        self._safe: bool | None = None
        with theirs:
            code = [_SERVER_CODE, str(theirs.fileno()), import_path()]
            self.process = subprocess.Popen(
                [sys.executable, "-c", *code, *libraries],
                env=outside_environment() | thread_variables(1, 1) | watched.environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        watched.add(self.process.pid)

    def is_safe(self) -> bool:
        """Return whether the server has one thread and answers; wait until it has imported."""
        if self._safe is None:
            with contextlib.suppress(OSError, EOFError):
                self._safe = self.ask(None)
        return bool(self._safe) and self.process.poll() is None

    def ask(self, question: Any) -> Any:
        """Return the answer to a question of `_answer`.

        Raises:
            EOFError, OSError: The server has ended, or does not answer.
        """
        with self._lock:
            if self._safe is False:
                raise EOFError("it failed before")
            try:
                self._connection.send(question)
                if not self._connection.poll(_ANSWER_SECONDS):
                    raise TimeoutError("no answer")
                return self._connection.recv()
            except (EOFError, OSError):
                self._safe = False  # a late answer would be taken for the next one
                raise

    def close(self) -> None:
        """Wait until the server, which was terminated, has ended; kill it if that takes long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_CLOSE_SECONDS)
        self.process.kill()
        self.process.wait()
        with self._lock:
            self._connection.close()


class _Forked:
    """A process that a server has forked, with the methods of `subprocess.Popen` that are used.

    Raises:
        WorldError: The server has ended, or does not answer.
    """

    def __init__(
        self, server: _Server, directory: Path, rank: int, variables: dict[str, str]
    ) -> None:
        self._server = server
        self._status: int | None = None
        try:
            self.pid = server.ask((directory, rank, variables))
        except (EOFError, OSError) as error:
            raise WorldError(
                f"rank {rank} was not started: process {server.process.pid}, which forks "
                f"ranks, has ended or did not answer within {_ANSWER_SECONDS:g} s; see whether "
                f"the system killed it for lack of memory, and run the check again",
                lost=[rank],
            ) from error

    def poll(self) -> int | None:
        """See `subprocess.Popen.poll`."""
        if self._status is None:
            try:
                self._status = self._server.ask(self.pid)
            except (EOFError, OSError):
                # A server that has ended in order has killed every rank that was left.
                self._status = -signal.SIGKILL if self._server.process.returncode == 0 else None
        return self._status

    def wait(self, timeout: float) -> int:
        """See `subprocess.Popen.wait`."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked rank", timeout)
            time.sleep(_POLL_SECONDS)
        return status


def serve(descriptor: int, libraries: list[str]) -> None:
    """Import libraries, then fork ranks until the leader terminates this process or has ended."""
    gc.disable()
    for name in libraries:
        importlib.import_module(name)
    gc.freeze()  # else each collection in a rank walks, and so copies, what was imported here
    running: set[int] = set()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with contextlib.suppress(EOFError, OSError, SystemExit):
        connection = Connection(descriptor)
        while True:
            connection.send(_answer(connection.recv(), running, connection))
    # A rank that is stopped, or has not reached the leader yet, can't notice that it is gone.
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _answer(question: Any, running: set[int], connection: Connection) -> Any:
    """Answer one question of the leader.

    None asks whether this process may be forked, a process id for the status of that process, and a
    control directory, a rank and variables for the id of a new process.
    """
    if question is None:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    if isinstance(question, int):
        ended, status = os.waitpid(question, os.WNOHANG)
        if not ended:
            return None
        running.remove(ended)
        return os.waitstatus_to_exitcode(status)
    directory, rank, environment = question
    try:
        pid = os.fork()
    except OSError:  # there is no memory left; the ranks of other worlds go on
        os._exit(1)
    if pid == 0:
        connection.close()
        os._exit(_become(directory, rank, environment))
    running.add(pid)
    return pid


def _become(directory: Path, rank: int, environment: dict[str, str]) -> int:
    """Be a rank, as if the process had just been started; return its exit status."""
    try:
        gc.enable()
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
