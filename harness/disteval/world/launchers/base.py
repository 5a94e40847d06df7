"""The interface of a launcher, the launchers by name, and launchers that start processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.host import thread_variables
from disteval.world.address import LOOPBACK, Hosts
from disteval.world.control_directory import ControlDirectory, create
from disteval.world.environment import outside_environment
from disteval.world.fork_client import Forked
from disteval.world.interrupts import interrupted_later
from disteval.world.postmortem import RankStatus, examine, exit_text
from disteval.world.process import IN_CHILD, how_child_ended, import_code, import_path
from disteval.world.watched import Watched

_PATH = "open(sys.argv[1] + '/sys.path').read()"  # users see the command lines of launchers
_RANK_CODE = import_code(_PATH, "disteval.world.process import main") + "sys.exit(main())"

_TERMINATE_SECONDS = 3.0
_KILL_SECONDS = 5.0
_SECONDS_PER_RANK = 0.1  # more, for the cores of a host are shared


class Launcher(ABC):
    """Starts the ranks of one world, and terminates them.

    Attributes:
        name: The name of the launcher, as in `BaseDistBackend.launcher`.
        attached: Whether somebody else started the processes, so that they are never terminated.
        own_processes: Whether each rank is a process that can be ended without the others.
        watched: Where a launcher adds the processes that end with the leader; set before `prepare`.
        elastic: Whether the other ranks are to go on when one is lost; set before `prepare`.
        serves: Whether a world uses it that has not ended.
    """

    watched: Watched
    serves: bool = False
    elastic: bool = False
    name: ClassVar[str]
    attached: ClassVar[bool] = False
    own_processes: ClassVar[bool] = True

    @property
    def on_this_host(self) -> bool:
        """Whether each rank is a process that is started on this host."""
        return self.own_processes

    def directory(self) -> ControlDirectory:
        """Create the world's control directory, private to this user."""
        return create()

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Check that this launcher can start the ranks of a backend; called before the others.

        Raises:
            UsageError: It can't.
        """

    def prepare(self, world_size: int) -> Hosts:
        """Find room for the ranks; `terminate` is called also when this fails.

        Returns:
            The hosts of the ranks: this one, unless the user chose otherwise.
        """
        return Hosts(LOOPBACK, [LOOPBACK] * world_size)

    @abstractmethod
    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Have every rank run `disteval.world.process.main` with that control directory.

        Args:
            directory: The world's control directory.
            world_size: The number of ranks.
            threads: Computing threads of each rank; None shares the cores of a host.

        Returns:
            The connections to the ranks that are threads of this process; the others connect by
            themselves.
        """

    @abstractmethod
    def ended(self) -> dict[int, str]:
        """Return the processes that have ended: their number, and how each ended in words."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended by itself; return False when time ran out."""

    @abstractmethod
    def terminate(self, pids: Mapping[int, int]) -> None:
        """End every process in bounded time.

        Args:
            pids: The process id of each rank that has reported.
        """

    def how_lost(self, rank: int) -> str:
        """Return how a lost rank ended in words, as far as the launcher knows."""
        return exit_text(None)

    def how_ended(self, rank: int) -> str:
        """Return how the process ended that was to be a rank; an empty text while it runs."""
        return self.ended().get(rank, "")

    @property
    def restarts(self) -> bool:
        """Whether a rank that is lost is started again."""
        return False

    def reported(self, rank: int) -> None:
        """Take notice that a rank of an elastic world reports, perhaps not for the first time."""

    def examine(self, directory: Path, ranks: Sequence[RankStatus]) -> None:
        """See `disteval.world.postmortem.examine`."""
        examine(directory, ranks)

    def log(self, seconds: float = 0.0) -> str:
        """Return the output of the launcher, and of the processes before they were ranks.

        Args:
            seconds: How long to wait until a launcher that logs why a rank was lost has done so.
        """
        return ""

    @classmethod
    def kept(cls) -> AbstractContextManager[None]:
        """Keep resources that worlds can share, such as a cluster, from one world to the next."""
        return nullcontext()


_launchers: dict[str, type[Launcher]] = {}


def register_launcher(launcher: type[Launcher]) -> type[Launcher]:
    """Register a launcher under its name; also usable as a decorator.

    Raises:
        UsageError: Another class has the name.
    """
    if _launchers.get(launcher.name, launcher) is not launcher:
        raise UsageError(f"the launcher name {launcher.name!r} is taken; choose another")
    _launchers[launcher.name] = launcher
    return launcher


def get_launcher(name: str) -> Launcher:
    """Create the launcher of that name.

    Raises:
        UsageError: No launcher has that name.
    """
    if not isinstance(name, str) or name not in _launchers:
        known = ", ".join(_launchers)
        raise UsageError(f"there is no launcher {name!r}; the known ones are: {known}")
    return _launchers[name]()


class ProcessLauncher(Launcher):
    """Starts the ranks with commands, as children or grandchildren of the leader."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._log: Path | None = None

    @abstractmethod
    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return the command of each process to start."""

    def environment(self) -> dict[str, str]:
        """Return variables that the commands themselves need."""
        return {}

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start every process; its output goes to a log until it is a rank."""
        self._processes, self._log = [], directory / "launcher.log"
        environment = self.environment() | thread_variables(world_size, threads)
        environment |= self.watched.environment()
        (directory / "sys.path").write_text(import_path())
        with self._log.open("wb") as log:
            for command in self.commands(directory, world_size):
                # A session of its own: Ctrl-C reaches the leader alone, which then terminates it.
                with interrupted_later():
                    process = subprocess.Popen(
                        command,
                        env=outside_environment() | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                    self._processes.append(process)
                    self.watched.add(process.pid)
        return []

    def log(self, seconds: float = 0.0) -> str:
        """See `Launcher.log`."""
        return self._log.read_text(errors="replace") if self._log else ""

    def ended(self) -> dict[int, str]:
        """See `Launcher.ended`; the processes are the commands."""
        found = ((i, process.poll()) for i, process in enumerate(self._processes))
        return {i: exit_text(status) for i, status in found if status is not None}

    def wait(self, seconds: float) -> bool:
        """See `Launcher.wait`."""
        deadline = time.monotonic() + seconds
        with suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))
            return True
        return False

    def terminate(self, pids: Mapping[int, int]) -> None:
        """Terminate every process group, then kill what is left, and what ranks have started."""
        running = [process.pid for process in self._processes if process.poll() is None]
        for group in running:
            _signal(os.killpg, group, signal.SIGTERM)
            _signal(os.killpg, group, signal.SIGCONT)  # a stopped process does not end otherwise
        more = _SECONDS_PER_RANK * max(len(pids), len(running))
        if not self.wait(_TERMINATE_SECONDS + more):
            for group in running:
                _signal(os.killpg, group, signal.SIGKILL)
            for pid in pids.values():
                _signal(os.kill, pid, signal.SIGKILL)
        self.watched.kill_all(_KILL_SECONDS + more)
        self.wait(_KILL_SECONDS + more)


class CommandLauncher(ProcessLauncher):
    """One command starts all ranks, ends the others when it has lost one, and logs why."""

    @abstractmethod
    def command(self, world_size: int) -> list[str]:
        """Return the launcher's part of the command; the part that each rank runs follows it."""

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return one command; its ranks read their number from what the launcher sets for them."""
        words = [*self.command(world_size), *rank_command(directory)]
        return [[*words, IN_CHILD] if self.elastic else words]

    def how_lost(self, rank: int) -> str:
        """See `Launcher.how_lost`; that of a rank in a child is known."""
        child = self.elastic and self._log and how_child_ended(self._log.parent, rank)
        return child or super().how_lost(rank)

    def how_ended(self, rank: int) -> str:
        """See `Launcher.how_ended`; the one process is the command."""
        child = self.elastic and self._log and how_child_ended(self._log.parent, rank, 0.0)
        return child or self.ended().get(0, "")

    def log(self, seconds: float = 0.0) -> str:
        """See `Launcher.log`; it is complete when the command has ended."""
        self.wait(seconds)
        return super().log()


def rank_command(directory: Path) -> list[str]:
    """Return the command of a process that becomes a rank; its number may follow."""
    return [sys.executable, "-c", _RANK_CODE, str(directory)]


def _signal(kill: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        kill(target, number)
