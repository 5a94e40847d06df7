"""A process that has imported what ranks need, and forks them off when its leader asks for one.

The leader's side is `disteval.world.forked`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from disteval.world.process import IMPORTED, become_rank, killed_with_parent
from disteval.world.watchdog import VARIABLE

MARK_BYTES = 24
"""The bytes that the server's own mark leaves for that of a world, see `_set_variables`."""

READ_LATE = ("DISTEVAL_", "PYTEST_CURRENT_TEST")
"""The beginnings of variables that nothing reads as it is imported, so that ranks may differ."""

_ARGUMENTS, _ENVIRONMENT = 45, 47  # their addresses in /proc/self/stat, counted from the state
_FLUSH_SECONDS = 5.0  # less than a leader waits for ranks that it has dismissed
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class RankToFork(NamedTuple):
    """An order to fork a rank.

    Attributes:
        directory: The control directory of its world.
        rank: Its number.
        command: The command that would start it, which `ps` shows.
        variables: The variables whose names begin with one of `READ_LATE`, among them the mark by
            which the watchdog finds the processes of the world.
        folder: The working directory.
        path: The value of ``sys.path``.
    """

    directory: Path
    rank: int
    command: list[str]
    variables: dict[str, str]
    folder: str
    path: list[str]


class Ready(NamedTuple):
    """The first message of a server.

    Attributes:
        safe: Whether it can be forked.
        modules: The names of the top-level modules that it has imported.
    """

    safe: bool
    modules: frozenset[str]


def serve(descriptor: int, libraries: Sequence[str], output: int) -> int:
    """Import libraries, then fork ranks until the leader terminates this process or has ended.

    Args:
        descriptor: The connection to the leader.
        libraries: The modules to import, beside this library's own.
        output: A file with what this process has printed, which each rank would have printed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how ranks end
    connection, running = Connection(descriptor), set[int]()
    order = None
    with contextlib.suppress(EOFError, OSError, SystemExit):
        gc.disable()
        for name in (IMPORTED, *libraries):
            importlib.import_module(name)
        gc.freeze()  # else each collection in a rank walks, and so copies, what was imported here
        sys.stdout.flush()
        sys.stderr.flush()
        printed = os.pread(output, os.fstat(output).st_size, 0)
        os.close(output)
        names = frozenset(name.partition(".")[0] for name in sys.modules)
        connection.send((0, Ready(_is_safe(), names)))
        order = _take_orders(connection, running)
    if order is not None:
        connection.close()
        _become(order, printed)
    # A rank that is stopped, or has not reached the leader yet, can't notice that it is gone.
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return 0


def _is_safe() -> bool:
    """Return whether this process can be forked: whether it has one thread, and its mark is found.

    OpenBLAS ends its threads before each fork, and starts them when it is used.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(OSError, ValueError):
        return len([*Path("/proc/self/task").iterdir()]) == 1 and bool(_mark_address())
    return False


def _take_orders(connection: Connection, running: set[int]) -> RankToFork | None:
    """Do what the leader asks until it is gone; return its order in the rank that is forked.

    The leader asks for a new rank, or with a process id for the status of that rank.
    """
    statuses: dict[int, int] = {}  # kept, since a leader may be interrupted as it asks
    while True:
        number, question = connection.recv()
        if isinstance(question, int):
            ended, status = os.waitpid(question, os.WNOHANG) if question in running else (0, 0)
            if ended:
                running.remove(ended)
                statuses[ended] = os.waitstatus_to_exitcode(status)
            connection.send((number, statuses.get(question)))
            continue
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                running.clear()
                return question  # type: ignore[no-any-return]
            running.add(pid)
            statuses.pop(pid, None)
            connection.send((number, pid))
        except OSError as error:  # there is no memory left; the ranks of other worlds go on
            connection.send((number, str(error)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _become(order: RankToFork, printed: bytes) -> None:
    """Be a rank as if the process had just been started, and end."""
    status = 1
    try:
        os.setsid()
        killed_with_parent()
        with (order.directory / "launcher.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        _show_command(order.command)
        _set_variables(order.variables)
        os.chdir(order.folder)
        sys.path[:] = order.path
        importlib.invalidate_caches()  # what is in those folders now may not have been there
        sys.argv[1:] = [str(order.directory), str(order.rank)]
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        multiprocessing.current_process().authkey = os.urandom(32)
        gc.enable()
        status = become_rank(order.directory, order.rank, printed=printed)
    except SystemExit as end:
        status = _exit_status(end)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _end(status)


def _exit_status(end: SystemExit) -> int:
    """Return the exit status that Python gives a process for an exception, and print its text."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _end(status: int) -> None:
    """End this process as Python does, without freeing what the server imported: that is costly."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush_files()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # what libraries print without Python
    finally:
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            signal.raise_signal(-status)
        os._exit(status)


def _flush_files() -> None:
    """Flush the files of this rank; one in which a thread waits to write holds up no other."""

    def flush(file: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            file.flush()

    # Of this rank alone, since the server's are frozen. isinstance would ask proxies, which may
    # import.
    files = [each for each in gc.get_objects() if issubclass(type(each), _WRITERS)]
    threads = [threading.Thread(target=flush, args=[file], daemon=True) for file in files]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _FLUSH_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _mark_address() -> tuple[int, int]:
    """Return where the kernel reads the value of `VARIABLE` of this process, and its length.

    Raises:
        ValueError: The variable is not there, or gVisor's kernel does not tell the address.
    """
    found = Path("/proc/self/environ").read_bytes()
    at = (b"\0" + found).index(f"\0{VARIABLE}=".encode()) + len(VARIABLE) + 1
    start = _addresses()[_ENVIRONMENT]
    if not start:
        raise ValueError("the address of the environment is unknown")
    return start + at, found.index(b"\0", at) - at


def _addresses() -> list[int]:
    """Return the numbers of /proc/self/stat, from the state on, which is 0 here."""
    return [0, *map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:])]


def _show_command(words: list[str]) -> None:
    """Have the kernel show another command line of this process, as far as there is room."""
    start, end = _addresses()[_ARGUMENTS : _ARGUMENTS + 2]
    shown = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _set_variables(variables: dict[str, str]) -> None:
    """Set variables of this process, among them the mark of a world.

    The watchdog reads the mark in /proc, where the kernel shows the environment with which the
    server was started. So it is written over the server's own.
    """
    address, room = _mark_address()
    ctypes.memmove(address, os.fsencode(variables[VARIABLE]).ljust(room, b":"), room)
    for name in [name for name in os.environ if name.startswith(READ_LATE)]:
        del os.environ[name]
    os.environ.update(variables)
