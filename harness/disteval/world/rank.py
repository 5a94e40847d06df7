"""A rank: it receives orders, runs them with its backend, and replies with the result.

A process that is started to be one begins in `main`, and a fork of a server goes on as one in
`serve_and_become`; any other rank calls `serve`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import cloudpickle

from disteval import frames
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.default_backend import set_group_of_world, set_rank_of_world
from disteval.errors import UsageError, WorldError
from disteval.launched import launched_job
from disteval.registry import load_backend_class
from disteval.traces.folder import category_of, own_clock
from disteval.traces.recorder import flush_all, start_with, stop
from disteval.traces.torch_calls import recorded_calls, trace_calls
from disteval.world.channel import messages
from disteval.world.channel.link import Address, Link, WatchedLink, connect
from disteval.world.collective_log import LoggedBackend
from disteval.world.control_directory import STACK_SIGNAL, rank_file
from disteval.world.postmortem import examine
from disteval.world.supervisor import name_process
from disteval.world.supervisor import serve as serve_leader

IMPORTED = "disteval.evaluation"
"""What every rank has imported, forked or started, because most of their functions call it."""

_LEAVE_SECONDS = 60.0
_FLUSH_SECONDS = 5.0  # less than a leader waits for ranks that it has dismissed
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class Rank:
    """The state of one rank between orders; its backend is None while it is in no group.

    Its methods are the orders that a `World` sends, and the exchange of its `Rendezvous`.
    """

    def __init__(self, directory: Path, rank: int, link: Link) -> None:
        self.directory = directory
        self.rank = rank
        self.backend: BaseDistBackend | None = None
        self.link = link
        self._finalize: Callable[[], None] = lambda: None
        self.leave_seconds = _LEAVE_SECONDS
        self._has_key = False
        self.joined_ns = 0  # when it joined its group, as of `time.time_ns`

    def load(self, host: str, *, backend: str | type[BaseDistBackend], path: list[str]) -> int:
        """Import a backend from where the leader does.

        Returns:
            A port of ``host``, this rank's address, that nobody listens on now.
        """
        sys.path.extend(entry for entry in path if entry not in sys.path)
        load_backend_class(backend)
        with socket.socket() as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])

    def read_clock(self) -> tuple[str, int]:
        """Return an identity of this host's clock, and its time in nanoseconds."""
        return own_clock(), time.monotonic_ns()

    def join(
        self, rendezvous: Rendezvous, *, cls: type[BaseDistBackend], world_size: int
    ) -> tuple[int, int]:
        """Join the group of a backend; return the rank and the world size that it reports."""
        self.joined_ns = time.time_ns()
        self.leave_seconds = _LEAVE_SECONDS + world_size
        if rendezvous.key:
            frames.set_key(rendezvous.key)
            self._has_key = True
        cls.init_process(self.rank, world_size, replace(rendezvous, exchange=self))
        self._finalize = cls.finalize_process
        backend = cls()
        self.backend = LoggedBackend(backend, rank_file(self.directory, self.rank, "collectives"))
        set_group_of_world(self.backend)
        return backend.rank, backend.world_size

    def leave(self) -> None:
        """Leave the group, if this rank has joined one."""
        if self.backend is not None:
            trace_calls(self.joined_ns)
        self.backend = None
        set_group_of_world(None)
        if self._has_key:
            frames.set_key(b"")
            self._has_key = False
        finalize, self._finalize = self._finalize, lambda: None
        finalize()

    def run(self, *args: Any, function: Callable[..., Any], world_size: int) -> Any:
        """Call a user's function with the backend, and this rank's argument if there is one."""
        set_rank_of_world(self.rank, world_size)
        return function(self.backend, *args)

    def publish(self, key: str, value: str | bytes) -> None:
        """See `disteval.contract.Rendezvous.publish`."""
        if not isinstance(key, str) or not isinstance(value, (str, bytes)):
            raise UsageError(
                f"a key is text and its value text or bytes, not {type(key).__name__} and "
                f"{type(value).__name__}"
            )
        self.link.send(messages.KeyValue(key, value))

    def lookup(self, key: str, timeout: float) -> str | bytes:
        """See `disteval.contract.Rendezvous.lookup`."""
        self.link.send(messages.KeyValue(key))
        deadline = time.monotonic() + timeout
        while True:
            message = self.link.get(deadline - time.monotonic())
            if message is None:
                raise TimeoutError(f"no rank published {key!r} within {timeout:g} s")
            if isinstance(message, messages.Dismissal):
                raise WorldError(f"the leader ended the world while {key!r} was waited for")
            # An answer to an earlier question may come after that question's timeout.
            if isinstance(message, messages.KeyValue) and message.key == key:
                assert message.value is not None
                return message.value

    def carry_out(self, order: messages.Order) -> messages.Reply:
        """Carry out one order; an exception that it raises goes into the reply."""
        place, what = order.trace or (None, "")
        recorder, begin = None, time.monotonic_ns()
        try:
            if place is not None:
                recorder = start_with(place, self.rank, what)
            function = cloudpickle.loads(order.function)
            arguments = cloudpickle.loads(order.arguments)
            _current.set(self)
            reply = messages.Reply(messages.packed(function(self, *arguments)))
        except Exception as error:
            reply = messages.failed(error, _users(error))
        finally:
            if recorder is not None:
                recorder.add(category_of(what), what, begin, time.monotonic_ns())
        if recorder is not None and reply.value is None:  # this rank may be ended soon
            recorder.flush()
        return reply


_current: ContextVar[Rank | None] = ContextVar("current_rank", default=None)
os.register_at_fork(after_in_child=lambda: _current.set(None))


def current_rank() -> Rank | None:
    """Return the rank inside a function that `World.run` runs, else None."""
    return _current.get()


def report_progress(done: int, total: int | None) -> None:
    """Report to the leader that this rank has done ``done`` of ``total`` samples of its order.

    Call it from inside a function that `World.run` runs; it resets the order's deadline. Elsewhere
    it does nothing.

    Raises:
        SystemExit: The leader of this rank, which is a thread of its process, was interrupted.
    """
    if (rank := _current.get()) is not None:
        try:
            rank.link.send(messages.Progress(done, total))
        except OSError:
            sys.exit()


def send_note(value: Any) -> None:
    """Send the leader a value before the order is done; `World.run` gives it to ``on_note``.

    Call it from inside a function that `World.run` runs; like a progress message it resets the
    order's deadline. Elsewhere it does nothing.

    Raises:
        UsageError: The value is too large for a message.
    """
    if (rank := _current.get()) is not None:
        data = messages.packed(value)
        messages.check_size(data, "a note", "return the value instead, or write it to a file")
        rank.link.send(messages.Note(data))


def serve(
    directory: Path,
    rank: int,
    inside: Connection | None = None,
    patience: float = 0.0,
    place: Path | Address | None = None,
    stopped: float = math.inf,
) -> int:
    """Carry out the leader's orders until it dismisses this rank.

    Args:
        directory: The directory of this rank's files: the world's control directory, or one of the
            rank's own where it can't see that.
        rank: The number of this rank.
        inside: The connection, where the leader runs in this process too. Otherwise the process
            connects to it, and ends at once when the leader is gone or when leaving the group takes
            too long, because its main thread may wait in a collective for ever.
        patience: The seconds until the leader must be there, as for `connect`.
        place: The leader's address, or the directory with it; None stands for ``directory``.
        stopped: The seconds after which the process ends if the leader, on this host, is stopped.

    Returns:
        The exit status that came with the dismissal.
    """

    def answer(message: messages.Examine) -> messages.Examined:
        examine(directory, message.ranks)
        since = follower.joined_ns if follower else 0
        flush_all()  # this rank may be ended soon
        return messages.Examined(message.ranks, recorded_calls(since))

    follower: Rank | None = None
    connection = inside or connect(place or directory, patience)
    with contextlib.nullcontext() if inside else _stack_on_signal(directory, rank):
        link = Link(connection) if inside else WatchedLink(connection, answer, stopped)
        hello = link.report(rank, directory)
        follower = Rank(directory, rank, link)
        while not isinstance(message := link.get(), messages.Dismissal):
            if isinstance(message, messages.Order):
                reply = follower.carry_out(message)
                if os.getpid() != hello.pid:  # the connection is that of the rank
                    _end_fork(reply)
                try:
                    link.send(reply)
                except OSError as error:  # the leader is gone, or the order closed the connection
                    link.lose(error)
        with contextlib.nullcontext() if inside else _ended_after(follower.leave_seconds):
            follower.leave()
        stop()
        return message.exit_code


@contextlib.contextmanager
def _stack_on_signal(directory: Path, rank: int) -> Iterator[None]:
    # faulthandler writes from the signal handler itself: it needs neither the GIL nor the main
    # thread.
    with rank_file(directory, rank, "stack").open("w") as file:
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(STACK_SIGNAL)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: no leader watches a rank that was dismissed."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_fork(reply: messages.Reply) -> NoReturn:
    """End a process that a rank's function has forked, and that has returned from it, too."""
    sys.stderr.write(reply.trace)
    sys.stderr.flush()
    os._exit(bool(reply.trace))


def _users(error: Exception) -> TracebackType | None:
    """Return the traceback without the calls of this module at its top."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def import_path() -> str:
    """Return the folder that holds this library, then the folders that this process imports from.

    Each is a line, for `import_code`.
    """
    path = [entry or str(Path.cwd()) for entry in sys.path if isinstance(entry, str)]
    return "\n".join([str(Path(__file__).parents[2]), *path])


def import_code(lines: str, what: str) -> str:
    """Return code that begins a Python process which imports from where this one does.

    Args:
        lines: An expression whose value is that of `import_path` here.
        what: What is imported first, from this library also where a file of the user's, such as
            ``disteval.py`` in the working directory, has the library's name.
    """
    return (
        f"import sys; own, *path = {lines}.splitlines(); "
        f"sys.path[:] = [own, *path]; from {what}; sys.path[:] = path; "
    )


def become_rank(directory: Path, rank: int, place: Address | None = None) -> int:
    """Serve as one rank of a world until the leader dismisses it; return the exit status.

    Args:
        directory: The control directory of the world.
        rank: The number of the rank.
        place: See `serve`.
    """
    with rank_file(directory, rank, "out").open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    if isinstance(sys.stdout, io.TextIOWrapper):  # what Ray puts there does not buffer
        sys.stdout.reconfigure(line_buffering=True)
    name_process(f"rank {rank}")
    importlib.import_module(IMPORTED)
    faulthandler.enable()
    return serve(directory, rank, place=place)


def main() -> int:
    """Serve as one rank of a world; the arguments are its control directory and the rank.

    Where a launcher sets the rank in the environment it is left out.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how children end
    folder, *words = sys.argv[1:]
    # Under mpirun every rank has the same command, and its number is in the environment.
    job = None if words else launched_job()
    return become_rank(Path(folder), int(words[0]) if job is None else job.rank)


def serve_and_become(descriptor: int, leader: int, libraries: Sequence[str]) -> NoReturn:
    """Fork ranks for a leader; each is as if its process had just been started.

    Args:
        descriptor: As for `disteval.world.supervisor.serve`.
        leader: As there.
        libraries: As there.
    """
    forked = serve_leader(descriptor, leader, libraries)
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(forked.variables)
        sys.path[:] = forked.path
        importlib.invalidate_caches()  # what is in those folders now may not have been there
        sys.argv[1:] = [forked.folder, str(forked.rank)]
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        multiprocessing.current_process().authkey = os.urandom(32)
        gc.enable()
        status = become_rank(Path(forked.folder), forked.rank)
    except SystemExit as end:
        status = _exit_status(end)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _end(status)


def _exit_status(end: SystemExit) -> int:
    """Return the exit status that Python gives a process for an exception, and print its text."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _end(status: int) -> NoReturn:
    """End this process as Python does, without freeing what the server imported: that is costly."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush_files()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # what libraries print without Python
    finally:
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            signal.raise_signal(-status)
        os._exit(status)


def _flush_files() -> None:
    """Flush the files of this rank; one in which a thread waits to write holds up no other."""

    def flush(file: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            file.flush()

    # Of this rank alone, since the server's are frozen. isinstance would ask proxies, which may
    # import.
    files = [each for each in gc.get_objects() if issubclass(type(each), _WRITERS)]
    threads = [threading.Thread(target=flush, args=[file], daemon=True) for file in files]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _FLUSH_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
