"""The interface of a launcher, the launchers by name, and launchers that start processes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.host import thread_variables
from disteval.world.address import LOOPBACK, Hosts
from disteval.world.control_directory import ControlDirectory, create
from disteval.world.environment import outside_environment
from disteval.world.postmortem import RankStatus, examine, exit_text
from disteval.world.processes import Processes
from disteval.world.rank_process import import_code, import_path

_PATH = "open(sys.argv[1] + '/sys.path').read()"  # users see the command lines of launchers
_RANK_CODE = import_code(_PATH, "disteval.world.rank_process import main") + "sys.exit(main())"

_TERMINATE_SECONDS = 3.0
_SECONDS_PER_RANK = 0.1  # more, for the cores of a host are shared


class Launcher(ABC):
    """Starts the ranks of one world, and ends them.

    One of your own has `start`, and of the other methods those that it does otherwise; or it is a
    `CommandLauncher` with a `command`.

    Attributes:
        name: The name of the launcher, as in `BaseDistBackend.launcher`.
        attached: Whether somebody else started the processes, so that they are never terminated.
        own_processes: Whether each rank is a process that can be ended without the others.
        on_this_host: Whether each rank is a process that is started on this host.
        restarts: Whether a rank of an elastic world that is lost is started again.
        processes: What starts processes that end with the leader; set before `prepare`.
        elastic: Whether the other ranks are to go on when one is lost; set before `prepare`.
        in_use: Whether a world uses it that has not ended.
    """

    processes: Processes
    in_use: bool = False
    elastic: bool = False
    name: ClassVar[str]
    attached: ClassVar[bool] = False
    own_processes: ClassVar[bool] = True
    on_this_host: bool = True
    restarts: ClassVar[bool] = False

    def directory(self) -> ControlDirectory:
        """Create the world's control directory, private to this user."""
        return create(keep=self.processes.keep)

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Check that this launcher can start the ranks of a backend; called before the others.

        Raises:
            UsageError: It can't.
        """

    def prepare(self, world_size: int) -> Hosts:
        """Find room for the ranks; `end` is called also when this fails.

        Returns:
            The hosts of the ranks: this one, unless the user chose otherwise.
        """
        return Hosts(LOOPBACK, [LOOPBACK] * world_size)

    @abstractmethod
    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Have every rank run `disteval.world.rank_process.main` with that control directory.

        Args:
            directory: The world's control directory.
            world_size: The number of ranks.
            threads: Computing threads of each rank; None shares the cores of a host.

        Returns:
            The connections to the ranks that are threads of this process; the others connect by
            themselves.
        """

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """Return in words how a rank ended; an empty text while it runs, or if that is not known.

        Args:
            rank: The rank, which may not have reported to the leader.
            seconds: How long to wait for its end.
        """
        return ""

    def log(self, seconds: float = 0.0) -> str:
        """Return the output of the launcher, and of the processes before they were ranks.

        Args:
            seconds: How long to wait until a launcher that logs why a rank was lost has done so.
        """
        return ""

    def end(self, pids: Mapping[int, int]) -> None:
        """End every process in bounded time.

        Args:
            pids: The process id of each rank that has reported.
        """
        more = _SECONDS_PER_RANK * max(len(pids), len(self.processes))
        self.processes.end(_TERMINATE_SECONDS + more)

    def reported(self, rank: int) -> None:
        """Take notice that a rank of an elastic world reports, perhaps not for the first time."""

    def examine(self, directory: Path, ranks: Sequence[RankStatus]) -> None:
        """See `disteval.world.postmortem.examine`."""
        examine(directory, ranks)


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
    """Starts the ranks with commands, on this host."""

    def __init__(self) -> None:
        self._log: Path | None = None

    @abstractmethod
    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return the command of each process to start."""

    def environment(self) -> dict[str, str]:
        """Return variables that the commands themselves need."""
        return {}

    def variables(self, world_size: int, threads: int | None) -> dict[str, str]:
        """Return the environment of the commands."""
        return outside_environment() | self.environment() | thread_variables(world_size, threads)

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start every process; its output goes to a log until it is a rank."""
        self._log = directory / "launcher.log"
        (directory / "sys.path").write_text(import_path())
        variables = self.variables(world_size, threads)
        for command in self.commands(directory, world_size):
            self.processes.start(command, variables, self._log)
        return []

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """See `Launcher.how_ended`; the connection of a rank may close before its process ends."""
        status = self.processes.how_ended(rank, seconds) if rank < len(self.processes) else None
        return "" if status is None else exit_text(status)

    def log(self, seconds: float = 0.0) -> str:
        """See `Launcher.log`."""
        if self._log is None or not self._log.exists():
            return ""
        return self._log.read_text(errors="replace")


def rank_command(directory: Path) -> list[str]:
    """Return the command of a process that becomes a rank; its number may follow."""
    return [sys.executable, "-c", _RANK_CODE, str(directory)]
