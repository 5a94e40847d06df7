"""What ends with the leader: each of its worlds is known to its watchdog, see `watchdog`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from disteval.world import control_directory, watchdog

_LOGGER = logging.getLogger("disteval.world")
_END_SECONDS = 5.0
_WITHOUT = "if this process is killed, ranks that hang will not end with it"


class Watched(watchdog.Watched):
    """The processes and the control directory of one world, which the watchdog knows, too.

    Args:
        directory: The control directory; None if only processes are watched.
    """

    def __init__(self, directory: Path | None) -> None:
        super().__init__("" if directory is None else str(directory))
        self._name = _watchdog.begin(self)

    def environment(self) -> dict[str, str]:
        """Return the variable by which the processes of the world, and their children, are found.

        A process that leads worlds itself may be in another world.
        """
        outer = os.environ.get(watchdog.VARIABLE, "")
        return {watchdog.VARIABLE: outer + _watchdog.mark(self._name)}

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Mark this process, and add the processes that a library starts meanwhile.

        They inherit the mark, which some of them overwrite with their title.
        """
        before = os.environ.get(watchdog.VARIABLE)
        os.environ.update(self.environment())
        try:
            yield
            for pid in watchdog.find_all(_watchdog.mark(self._name), self.processes):
                self.add(pid)
        finally:
            if before is None:
                del os.environ[watchdog.VARIABLE]
            else:
                os.environ[watchdog.VARIABLE] = before

    def add(self, pid: int) -> None:
        """Add a process that was started for the world, and its session if it leads one."""
        self.processes[pid] = started = watchdog.started_at(pid)
        _watchdog.tell(f"add {self._name} {pid} {started}")

    def kill_all(self, seconds: float) -> bool:
        """Kill every process of the world, in bounded time; return False if one is left."""
        return watchdog.kill_all(_watchdog.mark(self._name), self.processes, seconds)

    def end(self) -> None:
        """Have the watchdog forget the world, of which nothing is left."""
        _watchdog.end(self._name)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a control directory, which is removed after the block, or when this process is killed.

    Raises:
        WorldError: See `disteval.world.control_directory.create`.
    """
    made = control_directory.create()
    watched = Watched(made.path)
    try:
        yield made.path
    finally:
        made.remove()
        watched.end()


class _Watchdog:
    """The watchdog of this process, which starts with the first world."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._worlds: dict[int, Watched] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.RLock()
        self._count = itertools.count(1)
        self._warned = False
        # Created with this module, so called after those of worlds, and of servers that fork ranks.
        weakref.finalize(self, _end, self._started)

    @property
    def _process(self) -> subprocess.Popen[bytes] | None:
        return self._started[-1] if self._started else None

    def mark(self, name: int) -> str:
        return f":{self._token}.{name}:"

    def begin(self, world: Watched) -> int:
        with self._lock:
            name = next(self._count)
            self.tell(f"begin {name} {world.directory}")
            self._worlds[name] = world
            return name

    def end(self, name: int) -> None:
        with self._lock:
            if self._worlds.pop(name, None) is not None:
                self.tell(f"end {name}")

    def tell(self, line: str) -> None:
        """Send the watchdog a line; start another one if it is gone."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                with contextlib.suppress(OSError):
                    return self._write(line)
                self._process.kill()  # it is stopped, and has not read for long
            try:
                self._start()
                self._write(line)
            except OSError as error:
                if not self._warned:
                    _LOGGER.warning("no watchdog could be started: %s; %s", error, _WITHOUT)
                self._warned = True

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), self._token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self._started.append(process)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        for name, world in self._worlds.items():
            self._write(f"begin {name} {world.directory}")
            for pid, started in world.processes.items():
                self._write(f"add {name} {pid} {started}")

    def _write(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        # So short a line is written whole or not at all.
        os.write(self._process.stdin.fileno(), os.fsencode(line) + watchdog.END_OF_LINE)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """Let each watchdog end: it does when this end of the pipe is closed."""
    for process in started:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            assert process.stdin is not None
            process.stdin.close()
            process.send_signal(signal.SIGCONT)  # somebody may have stopped it
            process.wait(_END_SECONDS)


_watchdog = _Watchdog()


def _begin_anew() -> None:
    """Give a fork of a leader a watchdog of its own, for it dies at another time."""
    global _watchdog
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_begin_anew)
