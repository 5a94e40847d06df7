"""Finding and awaiting the processes that a command under test has started."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from disteval.world import World, control_directory
from disteval.world.collective_log import read_position
from disteval.world.launchers import (
    HorovodrunLauncher,
    MpirunLauncher,
    ThreadsLauncher,
    TorchrunLauncher,
    register_launcher,
)

T = TypeVar("T")


def is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def start_as_from_a_terminal(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command, keep its output, and let Ctrl-C reach it.

    A test run that was itself started in the background ignores SIGINT, and so would its children.
    """
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**options.pop("env", os.environ), "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def run_plainly(
    command: list[str], folder: Path, seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with this process's import path and without colours.

    One that does not end in time fails the test, and shows what it had printed.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=os.environ | MpirunLauncher().environment() | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        told = b"".join(filter(None, [late.stdout, late.stderr])).decode(errors="replace")
        pytest.fail(f"it did not end within {seconds} s, having printed:\n{told}")


def run_on_a_terminal(command: list[str], **options: Any) -> str:
    """Run a command on a terminal of 40 lines and 100 columns, and return what it prints there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    shown = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **options) as done:
        os.close(theirs)
        with suppress(OSError), open(ours, "rb", 0) as terminal:  # Linux ends it with an error
            while chunk := terminal.read(4096):
                shown += chunk
    assert done.returncode == 0, shown
    return shown.decode()


def mpirun(world_size: int) -> tuple[str, ...]:
    """Return the words that start so many ranks of the command after them."""
    return tuple(MpirunLauncher().command(world_size))


def mpi_variables() -> dict[str, str]:
    """Return the environment variables with which mpirun is started."""
    return MpirunLauncher().environment()


def torchrun(world_size: int) -> tuple[str, ...]:
    """Return the words that start so many ranks of the command after them."""
    return tuple(TorchrunLauncher().command(world_size))


def horovodrun(world_size: int) -> tuple[str, ...]:
    """Return the words that start so many ranks of the command after them."""
    return tuple(HorovodrunLauncher().command(world_size))


def ranks_below(pid: int) -> dict[int, int]:
    """Return by rank the ids of the rank processes that descend from ``pid``."""
    found: dict[int, int] = {}
    for below in processes_below(pid):
        rank = _rank_of(Path(f"/proc/{below}"))
        # A child that a rank has just forked has the rank's name until it runs a command.
        is_child = rank in found and below in processes_below(found[rank])
        if rank is not None and not is_child:
            found[rank] = below
    return found


def hosts_of(world: World) -> tuple[str, list[str]]:
    """Return the address at which the leader of a world is reached, and those of its ranks."""
    return world._address.host, world._addresses


def processes_below(pid: int) -> list[int]:
    """Return the ids of the processes that descend from ``pid``."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        number = int(path.name)
        if stat := _stat(number):
            parents[number] = int(stat[1])
    return [number for number in parents if _is_below(number, pid, parents)]


def pids_of_ranks(estimator: Any) -> list[int]:
    """Return the ids of an estimator's rank processes, in the order of ranks."""
    found: list[int] = estimator._world.run(_own_pid)
    return found


def _own_pid(backend: Any) -> int:
    return os.getpid()


def private_folder() -> Path:
    """Return the folder in which worlds of this user keep their files; it may not be there."""
    return control_directory.folder()


def collectives_left_below(folder: Path) -> int:
    """Read how many collectives rank 0 has left, of a world whose files are below a folder."""
    return max((read_position(log).left for log in folder.rglob("rank-0.collectives")), default=0)


def left_over(pids: Collection[int]) -> list[int]:
    """Return which of these processes still exist after they have had time to end."""
    wait_for(lambda: not any(map(is_running, pids)), 30)
    return [pid for pid in pids if is_running(pid)]


def wait_for(look: Callable[[], T], seconds: float = 120.0) -> T:
    """Call a function until its result is true or time has run out, and return the last result.

    Only a test that fails takes the whole time, so that a busy machine is given enough of it.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _rank_of(process: Path) -> int | None:
    """Return the rank of a process that a world has started, or None for another process."""
    with suppress(OSError):
        if found := re.fullmatch(r"rank (\d+)\n", (process / "comm").read_text()):
            return int(found[1])
    return None
