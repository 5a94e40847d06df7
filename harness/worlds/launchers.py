"""How the processes of a world are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from harness.errors import UsageError
from harness.worlds.outer import outside_environment
from harness.worlds.rank import serve

# A rank imports what its leader imports, from where the leader does: not from a folder that happens
# to be the current one, as -m would.
RANK_CODE = (
    "import sys; sys.path[:] = open(sys.argv[1] + '/sys.path').read().splitlines(); "
    "from harness.worlds.process import main; sys.exit(main())"
)

_STATUS_SECONDS = 1.0
_TERMINATE_SECONDS = 3.0
_KILL_SECONDS = 5.0


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

    @abstractmethod
    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Make every rank run `harness.worlds.process.main` with that control directory.

        Args:
            directory: The world's control directory.
            world_size: How many ranks.
            environment: Variables to set for the ranks.

        Returns:
            A channel by rank to those that are threads of this process; the others will report.
        """

    @abstractmethod
    def ended(self) -> dict[int, int]:
        """Exit status by number of the processes it started that have ended; -n for signal n."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended by itself; False when time ran out."""

    @abstractmethod
    def bury(self, pids: list[int]) -> None:
        """End every process in bounded time.

        Args:
            pids: The ranks' own process ids, for launchers that start them at one remove.
        """

    def rank_status(self, rank: int) -> int | None:
        """The exit status of one rank, where the launcher can know it."""
        return None

    def hear_out(self, seconds: float) -> None:
        """Give a launcher that has something to say of a lost rank the time to say it."""

    def log(self) -> str:
        """What the launcher said, and the processes before they were ranks."""
        return ""


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
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env=outside_environment() | self.environment() | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        return {}

    def log(self) -> str:
        """What the processes printed before they were ranks, and what their launcher said."""
        return self._log.read_text(errors="replace") if self._log else ""

    def ended(self) -> dict[int, int]:
        """Exit status by number of the commands that have ended; -n for signal n."""
        found = ((i, process.poll()) for i, process in enumerate(self._processes))
        return {i: status for i, status in found if status is not None}

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


class LocalLauncher(ProcessLauncher):
    """Every rank is a child process of the leader."""

    name = "local"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """One command a rank."""
        return [
            [sys.executable, "-c", RANK_CODE, str(directory), str(rank)]
            for rank in range(world_size)
        ]

    def rank_status(self, rank: int) -> int | None:
        """The exit status of the rank's own process; its channel may close a moment before it."""
        try:
            return self._processes[rank].wait(_STATUS_SECONDS)
        except subprocess.TimeoutExpired:
            return None


class ThreadsLauncher(Launcher):
    """Every rank is a thread of the leader's process.

    A thread can't be ended: one that hangs stays until the process ends.
    """

    name = "threads"
    own_processes = False

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Start the threads; the environment is the process's and stays as it is."""
        channels = {}
        for rank in range(world_size):
            channels[rank], theirs = Pipe()
            thread = threading.Thread(target=serve, args=(directory, rank, theirs), daemon=True)
            self._threads.append(thread)
            thread.start()
        return channels

    def ended(self) -> dict[int, int]:
        """Nothing: threads do not end by themselves."""
        return {}

    def wait(self, seconds: float) -> bool:
        """Wait until every thread has left its group."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def bury(self, pids: list[int]) -> None:
        """Nothing to do: a thread ends when its channel to the leader closes."""


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


for _launcher in (LocalLauncher, ThreadsLauncher):
    register_launcher(_launcher)


def get_launcher(name: str) -> Launcher:
    """Create the launcher of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in _launchers:
        raise UsageError(
            f"there is no launcher {name!r}; the known ones are: {', '.join(_launchers)}"
        )
    return _launchers[name]()


def _signal(kill: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    try:
        kill(target, number)
    except ProcessLookupError:
        return
