"""The processes of a world, as their leader sees them; see `disteval.world.supervisor`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from disteval.errors import WorldError
from disteval.host import interrupts_held_back
from disteval.world import supervisor
from disteval.world.control_directory import create, sweep
from disteval.world.rank import IMPORTED, import_code, import_path

_LOGGER = logging.getLogger("disteval.world")
_ANSWER_SECONDS = 60.0  # as long as other ranks may take to start; imports come first
_STOPPED_SECONDS = 0.5
_END_SECONDS = 5.0
_LOOKS = 10  # at a helper that is to end
_MOST_KEPT = 2  # pairs of servers, since each process with torch holds about 150 MiB
# Neighbouring ranks come from different servers: they share no hash seed and no state that an
# import has left, just as ranks that are started one by one.
_SERVERS = 2
_READ_LATE = ("DISTEVAL_", "PYTEST_CURRENT_TEST")  # no library reads these as it is imported
_CODE = import_code("sys.argv[1]", "disteval.world.rank import serve_and_become") + (
    "serve_and_become(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
)


class _Link:
    """The connection to a helper, which does one order after the other.

    Attributes:
        pid: The process id of the helper.
        statuses: The exit statuses of the processes that it started and that have ended.
        is_lost: Whether it has ended, or does not answer.
    """

    def __init__(self, link: socket.socket, pid: int) -> None:
        self.pid, self.statuses, self.is_lost = pid, dict[int, int](), False
        self._link, self._rest = link, b""
        self._asked, self._answers = 0, dict[int, Any]()
        self._lock = threading.RLock()

    def send(self, order: Sequence[Any], given: Sequence[int] = ()) -> int:
        """Send an order, with descriptors that go with it; return the number of its answer."""
        with self._lock, interrupts_held_back():
            self._asked += 1
            line = json.dumps([self._asked, *order]).encode() + b"\n"
            try:
                self._link.sendall(line[socket.send_fds(self._link, [line], given) :])
            except OSError:
                self.is_lost = True
            return self._asked

    def answer(self, number: int, seconds: float = _ANSWER_SECONDS) -> Any:
        """Return the answer of that number; a helper that gives none in time is killed.

        Raises:
            ConnectionError: The helper has ended, or does not answer.
            OSError: It could not do what was asked.
        """
        with self._lock:
            deadline = time.monotonic() + seconds
            while number not in self._answers and not self.is_lost:
                left = deadline - time.monotonic()
                if not self.hear(min(_STOPPED_SECONDS, max(left, 0.0))):
                    # Somebody may have stopped it. What it did later would not be known here.
                    self.send_signal(signal.SIGCONT if left > 0 else signal.SIGKILL)
                    self.is_lost = left <= 0
            if number not in self._answers:
                raise ConnectionError(f"process {self.pid}, which starts ranks, does not answer")
            answer = self._answers.pop(number)
            if isinstance(answer, str):
                raise OSError(answer)
            return answer

    def hear(self, seconds: float) -> bool:
        """Wait so long for news, and take them; return whether there were any."""
        with self._lock:
            if self.is_lost or not wait([self._link], seconds):
                return False
            with contextlib.suppress(OSError), interrupts_held_back():
                if data := self._link.recv(1 << 16):
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    for number, *told in map(json.loads, lines):
                        if number == 0 and len(told) == 2:
                            self.statuses[told[0]] = told[1]
                        else:
                            self._answers[number] = told[0]
                    return True
            self.is_lost = True
            return True

    def send_signal(self, number: int) -> None:
        """Send the helper a signal, if it is there."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the connection: the helper ends when it has nothing left to do."""
        self.is_lost = True
        self._link.close()


class _Server(_Link):
    """A server, and the process of it."""

    def __init__(self, libraries: Sequence[str], variables: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = ["-I", "-S", supervisor.__file__]
            if libraries:
                words = ["-c", _CODE, import_path()]
            self.process = subprocess.Popen(
                [sys.executable, *words, str(theirs.fileno()), str(os.getpid()), *libraries],
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=None if libraries else "/",
            )
        super().__init__(ours, self.process.pid)
        self._safe: bool | None = None

    def is_safe(self) -> bool:
        """Return whether it can be forked; wait until it has imported."""
        with self._lock:
            if self._safe is None:
                with contextlib.suppress(OSError):
                    self._safe = bool(self.answer(0))
                if self._safe is False:  # it gives back the memory and the GPU of its imports
                    self.close()
            return self._safe is True and not self.has_ended()

    def has_ended(self) -> bool:
        """Return whether its process has ended; not of one that was closed as unsafe."""
        return self._safe is not False and (self.is_lost or self.process.poll() is not None)

    def close(self) -> None:
        """See `_Link.close`; wait for a moment until it has ended."""
        super().close()
        for _ in range(_LOOKS):  # somebody may stop it at any of these moments
            self.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS / _LOOKS)
                return


def _supervise(servers: Sequence[_Server], folder: Path | None) -> list[_Link]:
    """Fork a supervisor off each server, and return the connections to them.

    They are as this process is now.

    Raises:
        OSError: A server has ended, or can't fork.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    kinds = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    limits = [(kind, resource.getrlimit(kind)) for kind in kinds]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    order = "supervise", str(folder or ""), umask, limits, cores
    with contextlib.ExitStack() as stack:
        place = os.open(".", os.O_RDONLY)  # also where the folder was removed
        stack.callback(os.close, place)
        pairs = [socket.socketpair() for _ in servers]
        asked = []
        for server, (_, theirs) in zip(servers, pairs, strict=True):
            with theirs:
                asked.append(server.send(order, [theirs.fileno(), place]))
        pids = [s.answer(number) for s, number in zip(servers, asked, strict=True)]
        return [_Link(ours, pid) for (ours, _), pid in zip(pairs, pids, strict=True)]


class _Kept:
    """The servers that this process keeps for its next worlds.

    Attributes:
        forking: Those that have imported what ranks need, by what they need to be alike in; those
            used last come last.
        bare: Those without libraries, by user.
    """

    def __init__(self) -> None:
        self.forking: dict[Any, list[_Server]] = {}
        self.bare: dict[Any, _Server] = {}
        self._lock = threading.Lock()
        self._warned = False
        # Created with this module, so at the end of Python it is called after those of all worlds.
        weakref.finalize(self, _close_all, self.forking, self.bare)

    def find(
        self, libraries: Sequence[str], variables: dict[str, str], world_size: int
    ) -> list[_Server]:
        """Return the servers that fit, as many as a world needs; they may still import."""
        read = {k: v for k, v in variables.items() if not k.startswith(_READ_LATE)}
        key = tuple(libraries), tuple(sorted(read.items())), import_path(), _user()
        with self._lock:
            found = self.forking.pop(key, [])
            if any(server.has_ended() for server in found):
                found = []
            self.forking[key] = found
            while len(found) < min(world_size, _SERVERS):
                found.append(_Server((IMPORTED, *libraries), variables))
            # Those that are left out end with the worlds that use them.
            while len(self.forking) > _MOST_KEPT:
                for server in self.forking.pop(next(iter(self.forking))):
                    _Link.close(server)
        return found

    def supervise(self) -> _Link | None:
        """Return a supervisor that starts commands; None where no helper can be started."""
        for _ in range(2):  # somebody may have killed the one of before
            try:
                with self._lock:
                    server = self.bare.get(_user())
                    if server is None or server.has_ended():
                        self.bare[_user()] = server = _Server((), dict(os.environ))
                return _supervise([server], None)[0]
            except OSError as error:
                failed = error
        if not self._warned:
            _LOGGER.warning(
                "no helper could be started: %s; if this process is killed, its folders stay until "
                "the next world starts", failed
            )  # fmt: skip
        self._warned = True
        return None


class Processes:
    """The processes of one world, and its folder, which end with this process however it ends."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._bare = _kept.supervise()
        self._forking: list[_Link] = []
        self._started: list[tuple[_Link, int]] = []

    def keep(self, folder: Path) -> None:
        """Have a control directory, which this process has locked, removed when it is gone."""
        self._folder = folder
        if self._bare is not None:
            self._bare.send(["keep", str(folder)])

    def announce(self, path: Path, text: str) -> None:
        """Write a file of mode 600, which is removed at the latest when this process is gone.

        Nobody sees it before it is whole.

        Raises:
            OSError: It can't be written.
        """
        path = path.absolute()
        if self._bare is not None:
            self._bare.send(["announce", str(path), text])
        draft = Path(f"{path}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.rename(path)

    def start(self, command: Sequence[str], variables: dict[str, str], output: Path) -> None:
        """Start a command, and add its output to a file.

        Raises:
            OSError: It can't be started.
        """
        if self._bare is None:
            raise OSError("there is no helper that could start it")
        order = ["start", list(command), variables, str(output.absolute())]
        self._started.append((self._bare, self._bare.answer(self._bare.send(order))))

    def fork(self, servers: Sequence[_Server], world_size: int, variables: dict[str, str]) -> None:
        """Fork the ranks of the world.

        Raises:
            OSError: There is no memory or no process left.
            WorldError: A server has ended, or does not answer.
        """
        path = import_path().splitlines()[1:]
        try:
            self._forking = _supervise(servers[:world_size], self._folder)
            several = len(self._forking)
            asked = [
                link.send(["fork", [*range(i, world_size, several)], variables, path])
                for i, link in enumerate(self._forking)
            ]
            found = [link.answer(n) for link, n in zip(self._forking, asked, strict=True)]
            for rank in range(world_size):
                at = rank % several
                self._started.append((self._forking[at], found[at][rank // several]))
        except ConnectionError as error:
            raise WorldError(
                f"the ranks were not started: {error}; see whether the system killed it for lack "
                f"of memory, and start the world again",
                lost=range(world_size),
            ) from error

    def __len__(self) -> int:
        return len(self._started)

    def how_ended(self, index: int, seconds: float = 0.0) -> int | None:
        """Return the exit status of a process; None if it still runs after so many seconds.

        Args:
            index: Its place among those that were started.
            seconds: How long to wait for its end.
        """
        link, pid = self._started[index]
        deadline, left = time.monotonic() + seconds, seconds
        while pid not in link.statuses:
            if link.is_lost:  # the system kills the processes of a supervisor that has ended
                return -signal.SIGKILL
            if not link.hear(max(left, 0.0)) and left <= 0:
                return None
            left = deadline - time.monotonic()
        return link.statuses[pid]

    def wait(self, seconds: float) -> bool:
        """Wait until every process has ended; return False when time ran out."""
        deadline = time.monotonic() + seconds
        places = range(len(self))
        return all(self.how_ended(i, deadline - time.monotonic()) is not None for i in places)

    def end(self, grace: float = 0.0, number: int = signal.SIGTERM) -> None:
        """End all processes, and those that they have started.

        Args:
            grace: Seconds in which they may end by themselves when the signal has come.
            number: The signal.
        """
        asked = [(link, link.send(["end", grace, number])) for link in self._links()]
        for link, order in asked:
            with contextlib.suppress(OSError):  # nothing is left of a supervisor that has ended
                link.answer(order, grace + supervisor.KILL_SECONDS + _END_SECONDS)

    def close(self) -> None:
        """Let the supervisors end, once the folder is removed."""
        for link in self._links():
            link.close()

    def _links(self) -> list[_Link]:
        return [link for link in (self._bare, *self._forking) if link is not None]


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """Yield a control directory of a rank that can't see its leader's, and remove it afterwards.

    It is removed also when this process is killed.
    """
    sweep(local=True)
    processes = Processes()
    control = create(local=True, keep=processes.keep)
    try:
        yield control.path
    finally:
        control.remove()
        processes.close()


def find_servers(
    libraries: Sequence[str], variables: dict[str, str], world_size: int
) -> list[_Server]:
    """Return servers for the ranks of a world, which may still import; nothing if there are none.

    Args:
        libraries: The modules that ranks may import before they are forked.
        variables: The environment of the ranks.
        world_size: The number of ranks.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):  # the working folder was removed, for example
            return _kept.find(libraries, variables, world_size)
    return []


def _user() -> Any:
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid(), tuple(os.getgroups())


def _close_all(forking: dict[Any, list[_Server]], bare: dict[Any, _Server]) -> None:
    servers = [*chain(*forking.values()), *bare.values()]
    for server in servers:
        _Link.close(server)
    for server in servers:
        server.close()


_kept = _Kept()


def _begin_anew() -> None:
    """Have a fork of a leader keep servers of its own."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_begin_anew)
