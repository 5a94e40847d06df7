"""The helper of a leader, which starts the processes of its worlds and ends what is left of them.

A leader that is killed can end nothing, and a rank that is stopped, or holds the lock of its
interpreter, does not notice. So ranks are not children of their leader. A *server* is, and it forks
a *supervisor* for each world. The supervisor starts the world's processes: by commands, or by forks
of itself where the server has imported what ranks need. It ends them when the leader asks for it,
or is gone: it then kills its children until there are none, and removes the world's folder, and the
file in which the leader has announced where it listens.

On Linux a process that loses its parent becomes a child of the supervisor, so that nothing which a
rank has started escapes, and the system kills the ranks of a supervisor that is killed itself: such
signals follow the thread that forked, and this process has one. What a killed supervisor leaves
comes to the server, which kills it. Elsewhere the processes that were started are ended, and their
groups are asked to.

Orders and answers are lines of JSON, the orders with a number that the answer repeats. This file
imports the standard library alone, since a server without libraries is run by its path.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

KILL_SECONDS = 10.0
_POLL_SECONDS = 0.5
_IDLE_SECONDS = 0.1
_LOOK_SECONDS = 0.01
_DYING_SECONDS = 2.0  # a leader that still has its folder then uses it for its next world
_ORPHAN_SECONDS = 2.0  # for what ranks have started, when these have been killed
_MOST_BYTES = 1 << 16
_SHARED = ("mpich_*", "ucx_shm_posix_*", "sm_segment.*")  # of MPICH, UCX below it, and Open MPI
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGIO)
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


class RankToBe(NamedTuple):
    """A rank, in the process that was forked to become it.

    Attributes:
        folder: The control directory of its world.
        rank: Its number.
        variables: Its environment.
        path: The value of ``sys.path``.
    """

    folder: str
    rank: int
    variables: dict[str, str]
    path: list[str]


class Helper:
    """A server, and in each process that it forks for a world that world's supervisor.

    Args:
        link: The connection to the leader.
        leader: The process id of the leader.
        prepares: Whether a supervisor is forked for the next world before there is one: a fork of
            a process that has imported much takes milliseconds.
    """

    def __init__(self, link: socket.socket, leader: int, prepares: bool) -> None:
        self._link, self._leader_pid = link, leader
        self._leader = -1
        with suppress(AttributeError, OSError):  # another system, an old one, or it is gone
            self._leader = os.pidfd_open(leader)
        self._supervises, self._folder = False, ""
        self._announced = dict[str, str]()  # where the leader listens, by file
        self._prepares = prepares
        self._spare: tuple[int, socket.socket] | None = None  # the supervisor of the next world
        self._begin()

    def _begin(self) -> None:
        """Have no children yet, take those who lose their parents, and wake when one ends."""
        self._started: set[int] = set()
        self._rest, self._given = b"", list[int]()
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        name_process("disteval helper")

    def serve(self) -> RankToBe | None:
        """Do what the leader asks, until it is gone; return in the process that is to be a rank."""
        while (order := self._next()) is not None:
            number, what, *given = order
            try:
                if what == "supervise":
                    answer: Any = self._supervise(*given)
                elif what == "keep":
                    (self._folder,), answer = given, True
                elif what == "announce":
                    self._announced |= [given]
                    answer = True
                elif what == "start":
                    answer = self._start(*given)
                elif what == "fork":
                    ranks, *rest = given
                    answer = []
                    for rank in ranks:
                        if not (pid := self._fork()):
                            return RankToBe(self._folder, rank, *rest)
                        answer.append(pid)
                else:
                    answer = self._end(*given)
            except OSError as error:  # there is no memory or no process left
                answer = str(error)
            if answer is not None:
                self.tell(number, answer)
        if self._supervises:
            self._withdraw()
            self._kill_all()
            begin = time.monotonic()
            # Another supervisor of the world may be about it, before all ranks of this one ended;
            # and a leader that is killed may close its link a moment before it releases the folder.
            while not _remove(self._folder):
                patience = KILL_SECONDS if self._is_leader_gone() else _DYING_SECONDS
                if time.monotonic() > begin + patience:
                    break
                time.sleep(_LOOK_SECONDS)
        else:
            self._wait_for_supervisors()
        return None

    def tell(self, *message: Any) -> None:
        """Send the leader a message."""
        with suppress(OSError):  # it is gone, which is noticed soon
            self._link.sendall(json.dumps(message).encode() + b"\n")

    def _next(self) -> Any:
        """Return the next order; None when there is none to come."""
        while b"\n" not in self._rest:
            prepares = self._prepares and not self._supervises and self._spare is None
            seconds = _IDLE_SECONDS if prepares else _POLL_SECONDS
            ready = self._wait(seconds, self._link.fileno(), self._leader)
            if prepares and not ready:
                with suppress(OSError):  # there is no memory or no process left
                    self._prepare()
                continue
            if self._link.fileno() in ready:
                with suppress(OSError):
                    data, given, _, _ = socket.recv_fds(self._link, _MOST_BYTES, 2)
                    self._rest += data
                    self._given += given
                    if data:
                        continue
                return None
            if self._is_leader_gone():
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _wait(self, seconds: float, *descriptors: int) -> set[int]:
        """Wait until something can be read or a child ends; return what can be read."""
        poll = select.poll()
        for descriptor in {self._woken, *descriptors} - {-1}:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * seconds)}
        with suppress(BlockingIOError):
            while os.read(self._woken, 1 << 10):
                pass
        self._reap()
        return ready

    def _is_leader_gone(self) -> bool:
        """Return whether the leader has ended; a fork of it may keep the link open."""
        if self._leader >= 0:
            poll = select.poll()  # select.select takes no descriptor above 1,023
            poll.register(self._leader, select.POLLIN)
            return bool(poll.poll(0))
        try:
            os.kill(self._leader_pid, 0)
        except OSError:
            return True
        return False

    def _supervise(self, *given: Any) -> int | None:
        """Have a supervisor that is as the leader is now; return its id, and in it None."""
        if self._supervises:
            self._take_over(*given)
            return None  # the server answers
        if self._spare is None and self._prepare():
            return None
        assert self._spare is not None
        (pid, spare), self._spare = self._spare, None
        descriptors, self._given = self._given, []
        try:
            with spare:
                socket.send_fds(
                    spare, [json.dumps([0, "supervise", *given]).encode() + b"\n"], descriptors
                )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return pid

    def _prepare(self) -> bool:
        """Fork a supervisor, which waits for its world; return whether this is the one."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            theirs.close()
            self._started.add(pid)
            self._spare = pid, ours
            return False
        os.setsid()
        for link in (self._link, ours):
            link.close()
        self._link, self._supervises = theirs, True
        self._close_pipe()
        self._begin()
        return True

    def _take_over(self, folder: str, umask: int, limits: list[Any], cores: list[int]) -> None:
        """Supervise a world from now on."""
        self._link.close()
        (link, place), self._given = self._given, []
        self._link, self._folder = socket.socket(fileno=link), folder
        os.fchdir(place)
        os.close(place)
        os.umask(umask)
        for which, limit in limits:
            with suppress(OSError, ValueError):  # it may not be raised
                resource.setrlimit(which, tuple(limit))
        with suppress(AttributeError, OSError):
            os.sched_setaffinity(0, cores)

    def _fork(self) -> int:
        """Fork a process that the system kills with this one; return its id, and 0 in it."""
        parent, pid = os.getpid(), os.fork()
        if pid:
            self._started.add(pid)
            return pid
        signal.set_wakeup_fd(-1)
        for number in (*_IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        killed_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        self._link.close()
        self._close_pipe()
        if self._leader >= 0:
            os.close(self._leader)
        return 0

    def _start(self, command: list[str], variables: dict[str, str], output: str) -> int:
        """Start a command, whose output is added to a file; return its process id."""
        pid = self._fork()
        if pid == 0:
            try:
                file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                os.dup2(file, 1)
                os.dup2(file, 2)
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(command[0], command, variables)  # noqa: S606
            except BaseException as error:
                os.write(2, f"{command[0]} can't be started: {error}\n".encode())
            finally:
                os._exit(127)
        return pid

    def _withdraw(self) -> None:
        """Remove the files in which the leader has announced itself, unless another has by now."""
        for path, text in self._announced.items():
            with suppress(OSError):
                Path(f"{path}.{self._leader_pid}").unlink(missing_ok=True)  # it was killed then
                if Path(path).read_text(errors="replace") == text:
                    Path(path).unlink()

    def _end(self, grace: float, number: int) -> bool:
        """End all processes: ask those that were started by a signal, and kill what is left then.

        Returns:
            Whether none is left.
        """
        for pid in self._started:
            _signal_group(pid, number)
        deadline = time.monotonic() + grace
        while self._started and time.monotonic() < deadline:
            self._wait(_LOOK_SECONDS)
        return self._kill_all()

    def _kill_all(self) -> bool:
        """Kill all processes until there are none; return False if that takes too long.

        What ranks have started gets a moment to end by itself: `multiprocessing` has a process that
        ignores SIGTERM, and removes the semaphores of those that have ended.
        """
        begin = time.monotonic()
        while self._reap() and (found := self._children()):
            passed = time.monotonic() - begin
            if passed > KILL_SECONDS:
                return False
            for pid in found:
                own = pid in self._started or passed > _ORPHAN_SECONDS
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL if own else signal.SIGTERM)
            self._wait(_LOOK_SECONDS)
        _remove_shared_memory()
        return True

    def _children(self) -> set[int]:
        """Return the children of this process; those that it has started where it sees no other."""
        if not _sees_processes():
            return set(self._started)
        own = os.getpid()
        return {pid for pid, parent in _parents().items() if parent == own}

    def _reap(self) -> bool:
        """Take the statuses of children that have ended; return whether there are others."""
        failed = False
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                failed |= status != 0
                if pid in self._started:
                    self._started.discard(pid)
                    if not _sees_processes():  # what it has started is not found otherwise
                        _signal_group(pid, signal.SIGTERM)
                    if self._spare is not None and self._spare[0] == pid:
                        self._spare[1].close()
                        self._spare = None
                    if self._supervises:
                        self.tell(0, pid, os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            return False
        if failed and not self._supervises:  # what a supervisor has left
            for pid in self._children() - self._started:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        return True

    def _wait_for_supervisors(self) -> None:
        """Wait until the worlds have ended of which this is the server."""
        late = 0.0
        if self._spare is not None:
            self._spare[1].close()
        while self._started and self._reap():
            if self._is_leader_gone():
                late = late or time.monotonic() + 2 * KILL_SECONDS
                for pid in self._started:
                    os.kill(pid, signal.SIGCONT)  # somebody may have stopped it
                if time.monotonic() > late:
                    break
            self._wait(_POLL_SECONDS)
        self._kill_all()  # also what a supervisor has left that was killed

    def _close_pipe(self) -> None:
        for end in (self._woken, self._wake):
            os.close(end)


def serve(descriptor: int, leader: int, libraries: Sequence[str] = ()) -> RankToBe:
    """Serve a leader until it is gone; return in each process that is to be a rank.

    Args:
        descriptor: The connection to the leader.
        leader: The process id of the leader.
        libraries: The modules to import before.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if libraries:
        gc.disable()
        for name in libraries:
            importlib.import_module(name)
        gc.freeze()  # else each collection in a rank walks, and so copies, what was imported here
        import weakref  # which a server without libraries does not need

        # Nor does a rank end, for all others, what was imported here, which torch takes long for.
        for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
            finalizer.atexit = False
    helper = Helper(socket.socket(fileno=descriptor), leader, prepares=bool(libraries))
    helper.tell(0, _is_safe())
    forked = helper.serve()
    if forked is None:  # what has been imported need not be freed
        os._exit(0)
    return forked


def _is_safe() -> bool:
    """Return whether this process has one thread, and no GPU open, which a fork can't use.

    OpenBLAS ends its threads before each fork, and starts them when it is used.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with suppress(OSError):
        opened = [str(entry.resolve()) for entry in [*Path("/proc/self/fd").iterdir()]]
        has_gpu = any(path.startswith(("/dev/nvidia", "/dev/kfd")) for path in opened)
        return len([*Path("/proc/self/task").iterdir()]) == 1 and not has_gpu
    return False


def killed_with_parent() -> None:
    """Have Linux kill this process with the thread that forked it, if that is a process's only."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def name_process(name: str) -> None:
    """Have Linux show this name of up to 15 characters of this process, as in `ps -o comm`."""
    _prctl(_PR_SET_NAME, name.encode())


def _signal_group(group: int, number: int) -> None:
    for each in (number, signal.SIGCONT):  # a stopped process does not end otherwise
        with suppress(OSError):
            os.killpg(group, each)


def _sees_processes() -> bool:
    """Return whether there is a /proc, and not one of another pid namespace with other numbers."""
    return Path("/proc/self").resolve().name == str(os.getpid())


def _parents() -> dict[int, int]:
    """Return the parent of each process that this one sees."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - quicker
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
            found[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    return found


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _remove_shared_memory() -> None:
    """Remove this user's files of MPI that no process of any container has open.

    They stay when ranks are killed. Linux leases a file for writing only to the one process that
    has it open, and a mapping counts as open.
    """
    shared = Path("/dev/shm")  # noqa: S108
    found = [path for pattern in _SHARED for path in shared.glob(pattern)]
    for path in found:
        with suppress(OSError), path.open("r+b", buffering=0) as file:  # it is in use, or gone
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                path.unlink()


def _remove(folder: str) -> bool:
    """Remove the folder of a world whose leader is gone; return False if another process has it."""
    import shutil  # which is costly, and most leaders end their worlds themselves

    path = Path(folder)
    if not path.is_absolute() or not path.parent.name.startswith("disteval-"):
        return True  # there is none
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        if os.path.samestat(path.lstat(), os.fstat(descriptor)):
            shutil.rmtree(path, ignore_errors=True)
        path.parent.rmdir()  # fails if it holds the folders of other leaders
    return True


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
