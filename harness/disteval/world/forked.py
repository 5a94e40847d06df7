"""Ranks that are forked off processes which have imported what the ranks need: the leader's side.

Importing a library takes most of the time in which a rank starts. So a leader keeps processes that
have imported it, and they fork off the ranks of its worlds; see `fork_server`. A rank must not be
told from one that was started in the ordinary way. Where a server could not fork such a rank, it is
not used, see `ForkServers.fit`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disteval.world.fork_client import CLOSE_SECONDS, Forked, Server
from disteval.world.fork_server import MARK_BYTES, READ_LATE, RankToFork
from disteval.world.interrupts import interrupted_later
from disteval.world.process import import_path
from disteval.world.watchdog import VARIABLE
from disteval.world.watched import Watched

# Neighbouring ranks come from different servers: they share no hash seed and no state that an
# import has left, just as ranks that are started one by one.
_SERVERS = 2
_MOST_KEPT = 2  # groups of servers, since each process with torch holds about 150 MiB

_INHERITED = (
    "Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "Cap", "NoNew", "Secc", "Cpus_", "Mems_"
)  # fmt: skip


class ForkServers:
    """Processes that fork off ranks for one leader, all with the same environment and imports.

    Args:
        libraries: The modules that the processes import first.
        variables: The environment of the ranks.
    """

    def __init__(self, libraries: Sequence[str], variables: dict[str, str]) -> None:
        self._libraries, self._variables = tuple(libraries), variables
        self._path, self._circumstances = import_path().splitlines(), _circumstances()
        self._watched = Watched(None)
        self._servers: list[Server] = []
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, os.getpid(), self._servers, self._watched)
        self._end.atexit = False  # the worlds end first, see `_Kept`

    def fit(self, libraries: Sequence[str], variables: dict[str, str]) -> bool:
        """Return whether ranks that are forked now are as those that would be started now."""
        asked = tuple(libraries), _read_at_import(variables), _circumstances()
        if asked != (self._libraries, _read_at_import(self._variables), self._circumstances):
            return False
        path = import_path().splitlines()
        if [entry for entry in path if entry in self._path] != self._path:
            return False
        new = [entry for entry in path if entry not in self._path]
        return not any(server.may_import_from(entry) for server in self._servers for entry in new)

    def start(self, world_size: int) -> None:
        """Start the servers that a world of so many ranks needs, as far as they have not started.

        Raises:
            OSError: They can't be started.
        """
        with self._lock:
            for _ in range(len(self._servers), min(world_size, _SERVERS)):
                self._servers.append(self._start())

    def are_usable(self) -> bool:
        """Return whether a world can be forked; wait until the servers have imported."""
        return all(server.is_safe() for server in self._servers)

    def are_lost(self) -> bool:
        """Return whether a server has ended that could fork ranks."""
        return any(server.is_lost() for server in self._servers)

    def fork(
        self, directory: Path, rank: int, command: list[str], variables: dict[str, str]
    ) -> Forked:
        """Fork a rank with these variables, as far as nothing reads them when it is imported.

        Raises:
            OSError: The working directory is gone, or there is no memory or process left.
            WorldError: The server has ended, or does not answer.
        """
        late = {name: variables[name] for name in variables if name.startswith(READ_LATE)}
        path = import_path().splitlines()[1:]
        order = RankToFork(directory, rank, command, late, str(Path.cwd()), path)
        return Forked(self._servers[rank % _SERVERS], order)

    def close(self) -> None:
        """Terminate the servers, and every rank of theirs that is left; closing twice is fine."""
        self._end()

    def _start(self) -> Server:
        mark = self._watched.environment()[VARIABLE] + ":" * MARK_BYTES
        return Server(self._libraries, self._variables | {VARIABLE: mark}, self._watched)


class _Kept:
    """The servers that this process keeps for its next worlds, those used last at the end."""

    def __init__(self) -> None:
        self._groups: list[ForkServers] = []
        self._lock = threading.Lock()
        # Created with this module, so at the end of Python it is called after those of all worlds.
        weakref.finalize(self, _close_all, self._groups)

    def find(self, libraries: Sequence[str], variables: dict[str, str]) -> ForkServers:
        """Return the servers that fit, which may not have started yet."""
        with self._lock:
            groups = [group for group in self._groups if not group.are_lost()]
            found = next((one for one in groups if one.fit(libraries, variables)), None)
            chosen = found or ForkServers(libraries, variables)
            # Those that are left out end with the worlds that use them.
            self._groups[:] = [*(one for one in groups if one is not chosen), chosen][-_MOST_KEPT:]
            return chosen


def find_servers(
    libraries: Sequence[str], variables: dict[str, str], world_size: int
) -> ForkServers | None:
    """Return servers for the ranks of a world, which may still import; None where there are none.

    Args:
        libraries: The modules that ranks may import before they are forked.
        variables: The environment of the ranks.
        world_size: The number of ranks.
    """
    if not sys.platform.startswith("linux") or not Path("/proc/self/environ").exists():
        return None
    with contextlib.suppress(OSError):
        Path.cwd()  # fails where the folder was removed, which a new process may inherit
        servers = _kept.find(libraries, variables)
        servers.start(world_size)
        return servers
    return None


def _read_at_import(variables: dict[str, str]) -> dict[str, str]:
    return {name: variables[name] for name in variables if not name.startswith(READ_LATE)}


def _circumstances() -> tuple[Any, ...]:
    """Return what a process inherits beside its environment, as far as /proc shows it."""
    status = Path("/proc/thread-self/status").read_text().splitlines()
    lines = [line for line in status if line.startswith(_INHERITED)]
    spaces = [path.readlink() for path in sorted(Path("/proc/self/ns").iterdir())]
    limits = Path("/proc/self/limits").read_text()
    return lines, spaces, limits, os.nice(0), Path("/proc/self/root").readlink()


def _close_all(groups: list[ForkServers]) -> None:
    for group in groups:
        group.close()
    groups.clear()


def _end(leader: int, servers: list[Server], watched: Watched) -> None:
    if os.getpid() != leader:  # a fork of the leader, whose servers are not its own
        return
    with interrupted_later():
        for server in servers:
            server.process.terminate()
        for server in servers:
            server.close()
        watched.kill_all(CLOSE_SECONDS)
        watched.end()


_kept = _Kept()


def _begin_anew() -> None:
    """Have a fork of a leader keep servers of its own."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_begin_anew)
