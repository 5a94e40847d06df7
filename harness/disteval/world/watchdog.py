"""The watchdog: a process that ends the worlds of its leader when the leader is gone.

A leader that is killed can end nothing, and a rank that is stopped, or holds the lock of its
interpreter, does not notice. So each leader runs this file once, in a session of its own. It sends
the watchdog a line for each world that begins, for each process that it starts for a world, and for
each world that has ended. When the leader is gone, the watchdog kills every process of the worlds
that are left, removes their control directories, and ends.

A process belongs to a world if it has the world's mark in its environment, if it is a process that
the leader has named or is in the session of one, or if it descends from such a process. It may
therefore start sessions of its own, lose its parents, or change its title, which overwrites its
environment.

Processes are found in /proc, thus on Linux. Elsewhere only the directories are removed, and a rank
ends by itself when it notices that its leader is gone. This file imports the standard library
alone, since it is run by its path.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "DISTEVAL_WORLDS"
"""The environment variable with the marks of the worlds that a process is in, outermost first."""

KILL_SECONDS = 10.0
END_OF_LINE = b"\0"
_POLL_MILLISECONDS = 500
_LOOK_SECONDS = 0.01
_START_SECONDS = 0.1
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


class Watched:
    """What the watchdog knows of one world: its directory, and processes with their start times."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.processes: dict[int, str] = {}


def kill_all(mark: str, processes: Mapping[int, str], seconds: float = KILL_SECONDS) -> bool:
    """Kill every process of a world until no process is found; return False if time ran out.

    Args:
        mark: The mark of the world, or what the marks of several worlds begin with.
        processes: Processes of the world, and when each was started.
        seconds: How long this may take.
    """
    deadline = time.monotonic() + seconds
    while found := find_all(mark, processes):
        for pid in found:
            with suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def find_all(mark: str, processes: Mapping[int, str]) -> set[int]:
    """Return the ids of the running processes of a world, as far as they are this user's.

    This process is never among them.
    """
    # The number of a process that has ended may be that of a later one.
    known = {pid for pid, started in processes.items() if started_at(pid) in (started, "")}
    parents: dict[int, int] = {}
    found = set()
    marked = mark.encode()
    for pid in _own_processes():
        stat = _stat(pid)
        if not stat or stat[0] in "ZX":
            continue
        parents[pid], session = int(stat[1]), int(stat[3])
        if pid in known or session in known or marked in _environment(pid):
            found.add(pid)
    for pid in parents:
        above = pid
        while above in parents and above not in found:
            above = parents[above]
        if above in found:
            found.add(pid)
    found.discard(os.getpid())
    return found


def _own_processes() -> list[int]:
    found: list[int] = []
    # The /proc of another pid namespace has other numbers, and a signal would reach a stranger.
    if Path("/proc/self").resolve().name != str(os.getpid()):
        return found
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid():
                found.append(int(path.name))
    return found


def _stat(pid: int) -> list[str]:
    """Return the state of a process, its parent, group and session, and more; [] if it ended."""
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def started_at(pid: int) -> str:
    """Return when a process was started, as the kernel counts; "" if it has ended."""
    stat = _stat(pid)
    return stat[19] if stat else ""


def _environment(pid: int) -> bytes:
    prefix = f"{VARIABLE}=".encode()
    found = (word for word in _read(pid, "environ").split(b"\0") if word.startswith(prefix))
    return next(found, b"")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def main(leader: int, token: str) -> None:
    """Watch until the leader is gone, then end what it has left.

    Args:
        leader: The process id of the leader, which is this process's parent.
        token: The token in the marks of all its worlds.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    worlds = _listen(leader)
    if not worlds:
        return
    processes = {pid: at for world in worlds.values() for pid, at in world.processes.items()}
    kill_all(f":{token}.", processes)
    # A process that the leader was just starting had the leader's environment.
    time.sleep(_START_SECONDS)
    kill_all(f":{token}.", processes)
    for world in worlds.values():
        if world.directory:
            _remove(Path(world.directory))


def _remove(directory: Path) -> None:
    """Remove a control directory whose leader is gone, unless another leader uses the name now."""
    import shutil  # which is costly, and most leaders end their worlds themselves

    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(directory.lstat(), os.fstat(descriptor)):
            shutil.rmtree(directory, ignore_errors=True)
        if directory.parent.name.startswith("disteval-"):
            directory.parent.rmdir()  # fails if it holds the directories of other leaders


def _listen(leader: int) -> dict[str, Watched]:
    """Take the leader's lines until it is gone, and return the worlds that are left."""
    worlds: dict[str, Watched] = {}
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with suppress(AttributeError, OSError):  # another system, an old one, or the leader is gone
        poll.register(os.pidfd_open(leader), select.POLLIN)
    rest = b""
    while True:
        gone = os.getppid() != leader
        ready = [descriptor for descriptor, _ in poll.poll(0 if gone else _POLL_MILLISECONDS)]
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return worlds
            *lines, rest = (rest + data).split(END_OF_LINE)
            _take(worlds, lines)
        elif gone or ready:
            return worlds


def _take(worlds: dict[str, Watched], lines: Iterable[bytes]) -> None:
    for line in lines:
        what, world, *rest = os.fsdecode(line).split(" ", 2)
        if what == "begin":
            worlds[world] = Watched(rest[0])
        elif what == "end":
            worlds.pop(world, None)
        elif world in worlds:
            # Not looked up here: the process may have ended, and its number be another's by now.
            pid, started = rest[0].split(" ")
            worlds[world].processes[int(pid)] = started


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
