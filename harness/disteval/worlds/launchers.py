"""How the processes of a world are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.worlds.cores import thread_variables
from disteval.worlds.interrupts import interrupted_later
from disteval.worlds.outer import outside_environment
from disteval.worlds.postmortem import Fate, examine, exit_text

LOOPBACK = "127.0.0.1"

# A rank imports what its leader imports, from where the leader does: not from a folder that happens
# to be the current one, as -m would.
RANK_CODE = (
    "import sys; sys.path[:] = open(sys.argv[1] + '/sys.path').read().splitlines(); "
    "from disteval.worlds.process import main; sys.exit(main())"
)

_STATUS_SECONDS = 1.0
_TERMINATE_SECONDS = 3.0
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Hosts:
    """Where a world lives.

    Attributes:
        leader: The address that the leader listens on.
        ranks: Each rank's address, on which it may listen.
        shared: Whether all ranks see the control directory.
    """

    leader: str
    ranks: Sequence[str]
    shared: bool = True


class Launcher(ABC):
    """Starts the ranks of one world, and buries them.

    Attributes:
        name: What `BaseDistBackend.launcher` calls it.
        attached: Whether the processes are somebody else's, to be left alone.
        own_processes: Whether each rank is a process, which can be ended without the others.
    """

    name: ClassVar[str]
    attached: ClassVar[bool] = False
    own_processes: ClassVar[bool] = True

    def directory(self) -> Path:
        """Create the world's control directory, private to this user."""
        return Path(tempfile.mkdtemp(prefix="disteval-"))

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Learn whose ranks it is to start; called first, where the harness starts them.

        Raises:
            UsageError: It knows that it can't start that backend's.
        """

    def thread_variables(self, world_size: int, threads: int | None) -> dict[str, str]:
        """Return the environment variables that set the computing threads of each rank."""
        return thread_variables(world_size, threads)

    def prepare(self, world_size: int) -> Hosts:
        """Find room for so many ranks; `bury` is called when this fails, too.

        Returns:
            Where they will live; on this host, unless the user chose otherwise.
        """
        return Hosts(LOOPBACK, [LOOPBACK] * world_size)

    @abstractmethod
    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Make every rank run `disteval.worlds.process.main` with that control directory.

        Args:
            directory: The world's control directory.
            world_size: How many ranks.
            environment: Variables to set for the ranks.

        Returns:
            A channel by rank to those that are threads of this process; the others will report.
        """

    @abstractmethod
    def ended(self) -> dict[int, str]:
        """How the processes that it started and that have ended did so, by their number."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended by itself; False when time ran out."""

    @abstractmethod
    def bury(self, pids: list[int]) -> None:
        """End every process in bounded time.

        Args:
            pids: The ranks' own process ids, for launchers that start them at one remove.
        """

    def how_lost(self, rank: int) -> str:
        """Say how a rank that is lost ended, as far as the launcher can know it."""
        return exit_text(None)

    def examine(self, directory: Path, fates: Sequence[Fate]) -> None:
        """See `disteval.worlds.postmortem.examine`."""
        examine(directory, fates)

    def hear_out(self, seconds: float) -> None:
        """Give a launcher that has something to say of a lost rank the time to say it."""

    def log(self) -> str:
        """What the launcher said, and the processes before they were ranks."""
        return ""

    @classmethod
    def kept(cls) -> AbstractContextManager[None]:
        """Keep what worlds can share, such as a cluster, while one comes after another."""
        return nullcontext()


_launchers: dict[str, type[Launcher]] = {}


def register_launcher(launcher: type[Launcher]) -> type[Launcher]:
    """Make a launcher known under its name; also usable as a decorator.

    Raises:
        UsageError: The name is taken by another class.
    """
    if _launchers.get(launcher.name, launcher) is not launcher:
        raise UsageError(f"the launcher name {launcher.name!r} is taken; choose another")
    _launchers[launcher.name] = launcher
    return launcher


def get_launcher(name: str) -> Launcher:
    """Create the launcher of that name.

    Raises:
        UsageError: There is none.
    """
    return _find_launcher(name)()


def keep(name: str | None) -> AbstractContextManager[None]:
    """Keep what the worlds of one launcher can share; nothing where none is named.

    Raises:
        UsageError: There is none of that name.
    """
    return nullcontext() if name is None else _find_launcher(name).kept()


def _find_launcher(name: str) -> type[Launcher]:
    if name not in _launchers:
        raise UsageError(
            f"there is no launcher {name!r}; the known ones are: {', '.join(_launchers)}"
        )
    return _launchers[name]


class ProcessLauncher(Launcher):
    """Starts the ranks with commands, as children or grandchildren of the leader."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log: Path | None = None

    @abstractmethod
    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """The command of each process to start."""

    def environment(self) -> dict[str, str]:
        """Variables that the commands themselves need."""
        return {}

    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Start every process; what they print before they are ranks goes to a log."""
        self._log = directory / "launcher.log"
        (directory / "sys.path").write_text("\n".join(path or str(Path.cwd()) for path in sys.path))
        with self._log.open("wb") as log:
            for command in self.commands(directory, world_size):
                # A session of its own: Ctrl-C reaches the leader alone, which then buries them.
                with interrupted_later():
                    process = subprocess.Popen(
                        command,
                        env=outside_environment() | self.environment() | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                    self._processes.append(process)
        return {}

    def log(self) -> str:
        """What the processes printed before they were ranks, and what their launcher said."""
        return self._log.read_text(errors="replace") if self._log else ""

    def ended(self) -> dict[int, str]:
        """How the commands that have ended did so, by their number."""
        found = ((i, process.poll()) for i, process in enumerate(self._processes))
        return {i: exit_text(status) for i, status in found if status is not None}

    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended by itself; False when time ran out."""
        deadline = time.monotonic() + seconds
        try:
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def bury(self, pids: list[int]) -> None:
        """Terminate every process group, then kill what is left."""
        running = [process.pid for process in self._processes if process.poll() is None]
        for group in running:
            _signal(os.killpg, group, signal.SIGTERM)
            _signal(os.killpg, group, signal.SIGCONT)  # a stopped process does not end otherwise
        if not self.wait(_TERMINATE_SECONDS):
            for group in running:
                _signal(os.killpg, group, signal.SIGKILL)
            for pid in pids:
                _signal(os.kill, pid, signal.SIGKILL)
        self.wait(_KILL_SECONDS)


@register_launcher
class LocalLauncher(ProcessLauncher):
    """Every rank is a child process of the leader."""

    name = "local"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """One command a rank."""
        return [
            [sys.executable, "-c", RANK_CODE, str(directory), str(rank)]
            for rank in range(world_size)
        ]

    def how_lost(self, rank: int) -> str:
        """Say how the rank's own process ended; its channel may close a moment before it."""
        try:
            return exit_text(self._processes[rank].wait(_STATUS_SECONDS))
        except subprocess.TimeoutExpired:
            return exit_text(None)


def _signal(kill: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    try:
        kill(target, number)
    except ProcessLookupError:
        return
