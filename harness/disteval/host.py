"""This host: its cores, interfaces and signals, what tells it from others; and how to end here."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA's pool of threads on CPUs
)


RANK_THREAD = "rank of a disteval world"
"""The name of each thread that is a rank."""

_SIOCGIFADDR = 0x8915  # of Linux: an interface's IPv4 address


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_variables(ranks_on_host: int, threads: int | None = None) -> dict[str, str]:
    """Return the environment variables that set the computing threads of each rank.

    Ranks that each take every core of a host slow one another down many times over.

    Args:
        ranks_on_host: How many ranks share this host's cores.
        threads: Threads a rank; None shares the cores evenly, at least one each, unless the user's
            environment already sets ``OMP_NUM_THREADS``.
    """
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        return {}
    each = threads or max(1, available_cores() // ranks_on_host)
    return {variable: str(each) for variable in _VARIABLES}


def interfaces() -> Iterator[tuple[str, str]]:
    """Yield the network interfaces that have an IPv4 address; none where this is not Linux."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(answer[20:24])


def this_machine(namespaces: Sequence[str] = ("pid", "mnt")) -> str:
    """Return an identity of this machine, as far as files and process ids mean the same in it.

    Two containers of one machine have different ones. Host names can be equal by chance.

    Args:
        namespaces: The kinds of namespaces that have to be the same.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # there is no /proc here, as on macOS
        import platform
        import uuid

        return f"{platform.node()} {uuid.getnode()}"
    paths = [Path(f"/proc/self/ns/{kind}") for kind in namespaces]
    return " ".join([boot, *(str(path.stat().st_ino) for path in paths if path.exists())])


def process_state(pid: int) -> str:
    """Return the letter of Linux for what a process does, such as ``T``; empty if it is unknown.

    A process is ``T`` while a signal has stopped it, and ``t`` while a debugger holds it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def rank_threads_left(seconds: float = 0.0) -> bool:
    """Return whether a rank that is a thread of this process has not ended in so many seconds."""
    until = time.monotonic() + seconds
    threads = [thread for thread in threading.enumerate() if thread.name == RANK_THREAD]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def exit_now(exit_code: int) -> None:
    """End this process without the exit handlers of its libraries.

    MPI would wait at exit for ranks that are lost or hang; their launcher ends them after this.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it is closed, or its reader is gone
            stream.flush()
    os._exit(exit_code)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Have Ctrl-C, and SIGTERM where it has a handler, come when the block has ended.

    Only the main thread is ever interrupted, so elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, Any]] = []
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):  # else the process ends, or does not
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append((number, frame)))
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        for which, frame in came:
            before[which](which, frame)
