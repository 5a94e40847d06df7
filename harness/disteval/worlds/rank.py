"""What a rank does: take orders, run them with its backend, tell what came back.

A process that the harness started comes here by `disteval.worlds.process`; one that is a rank of
somebody's ``mpirun`` or ``torchrun`` calls `serve`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from disteval.contract import BaseDistBackend, Rendezvous
from disteval.errors import UsageError, WorldError
from disteval.registry import get_backend_class
from disteval.worlds import control
from disteval.worlds.exchange import MAX_KEYS, check_entry
from disteval.worlds.inbox import Inbox, WatchedInbox
from disteval.worlds.journal import Identity, JournalledBackend, identity_of

STACK_SIGNAL = signal.SIGUSR1
CONNECT_SECONDS = 60.0
_LEAVE_SECONDS = 60.0
_OWN_FILES = {str(Path(__file__).with_name(name)) for name in ("rank.py", "world.py")}


class Rank:
    """The state of one rank between orders.

    Args:
        directory: The crew's control directory.
        rank: Which rank this is.
        inbox: What the leader sends.
        connection: The channel to the leader.
    """

    def __init__(self, directory: Path, rank: int, inbox: Inbox, connection: Connection) -> None:
        self.directory = directory
        self.rank = rank
        self.backend: BaseDistBackend | None = None
        self._inbox = inbox
        self._connection = connection
        self._published = 0
        self._finalize: Callable[[], None] = lambda: None

    def load(self, spec: str | type[BaseDistBackend], path: list[str]) -> None:
        """Import the backend; all ranks do it at once, for a library may join its job by that.

        Args:
            spec: A registered name, or the class.
            path: Where the leader imports from.
        """
        sys.path.extend(entry for entry in path if entry not in sys.path)
        if isinstance(spec, str):
            get_backend_class(spec)

    def join(
        self, cls: type[BaseDistBackend], world_size: int, meet: Rendezvous, believe: bool
    ) -> None:
        """Join the group, and check that the backend agrees on who and how many there are.

        Args:
            cls: The backend's class.
            world_size: How many ranks join.
            meet: What they need to find each other.
            believe: Leave it to a check whether the backend is right about its rank.
        """
        before = _identity_of_new(cls)
        self._published = 0
        cls.init_process(self.rank, world_size, replace(meet, exchange=self))
        self._finalize = cls.finalize_process
        backend = cls()
        if not believe and (backend.rank, backend.world_size) != (self.rank, world_size):
            raise UsageError(
                f"{cls.__name__} says it is rank {backend.rank} of {backend.world_size}, but it "
                f"runs as rank {self.rank} of {world_size}; its ranks must be started by its own "
                f"launcher, {cls.launcher!r}"
            )
        path = journal_path(self.directory, self.rank)
        self.backend = JournalledBackend(backend, path, before)

    def leave(self) -> None:
        """Leave the group, if this rank has joined one."""
        self.backend = None
        finalize, self._finalize = self._finalize, lambda: None
        finalize()

    def publish(self, key: str, value: str | bytes) -> None:
        """See `disteval.contract.Rendezvous.publish`."""
        check_entry(key, value)
        self._published += 1
        if self._published > MAX_KEYS:
            raise UsageError(f"one rank can publish {MAX_KEYS} keys, and {key!r} is one more")
        control.send(self._connection, control.Publication(key, value))

    def lookup(self, key: str, timeout: float) -> str | bytes:
        """See `disteval.contract.Rendezvous.lookup`."""
        control.send(self._connection, control.Question(key))
        deadline = time.monotonic() + timeout
        while True:
            message = self._inbox.get(deadline - time.monotonic())
            if message is None:
                raise TimeoutError(f"no rank published {key!r} within {timeout:g} s")
            if isinstance(message, control.Dismissal):
                raise WorldError(f"the leader ended the world while {key!r} was waited for")
            # An answer to an earlier question may come after its time was up.
            if isinstance(message, control.Answer) and message.key == key:
                return message.value

    def report_progress(self, done: int, total: int) -> None:
        """Tell the leader that this rank makes progress."""
        control.send(self._connection, control.Progress(done, total))

    def send_note(self, value: Any) -> None:
        """Send the leader a note."""
        data = control.packed(value)
        if len(data) > control.MAX_NOTE_BYTES:
            raise UsageError(
                f"a note of {len(data)} bytes is too large; up to {control.MAX_NOTE_BYTES} can be "
                f"told, for data there is what the order returns"
            )
        control.send(self._connection, control.Note(data))

    def carry_out(self, order: control.Order) -> control.Reply:
        """Run one order; whatever it raises goes into the reply."""
        try:
            function = cloudpickle.loads(order.function)
            arguments = cloudpickle.loads(order.arguments)
            _current.set(self)
            value = control.packed(function(self, *arguments))
        except Exception as error:
            return control.Reply(None, _pickled(error), _traceback(error), _summary(error))
        return control.Reply(value)


_current: ContextVar[Rank | None] = ContextVar("current_rank", default=None)


def report_progress(done: int, total: int) -> None:
    """Tell the leader that this rank has done ``done`` of ``total`` samples of its order.

    Call it from inside a function that `World.run` runs; it resets the order's deadline. Elsewhere
    it does nothing.
    """
    rank = _current.get()
    if rank is not None:
        rank.report_progress(done, total)


def send_note(value: Any) -> None:
    """Tell the leader something before the order is done: it comes to ``on_note`` of `World.run`.

    Call it from inside a function that `World.run` runs; like a progress message it resets the
    order's deadline. Elsewhere it does nothing.

    Raises:
        UsageError: The value is too large for a note.
    """
    rank = _current.get()
    if rank is not None:
        rank.send_note(value)


def serve(directory: Path, rank: int, inside: Connection | None = None) -> int:
    """Follow the leader's orders until it dismisses this rank.

    Args:
        directory: The crew's control directory.
        rank: Which rank this is.
        inside: The channel, where the leader lives in this process too. Otherwise the process
            reports to it, and ends at once when the leader is gone or when leaving the group takes
            too long, because its main thread may be in a collective for ever.

    Returns:
        The exit code that the leader gave with the dismissal.
    """
    connection = inside or control.connect(directory, CONNECT_SECONDS)
    with contextlib.nullcontext() if inside else _stack_on_signal(directory, rank):
        control.send(connection, control.Hello(rank, os.getpid(), threading.get_ident()))
        inbox = Inbox(connection) if inside else WatchedInbox(connection, directory)
        follower = Rank(directory, rank, inbox, connection)
        while not isinstance(message := inbox.get(), control.Dismissal):
            if isinstance(message, control.Order):
                reply = follower.carry_out(message)
                with contextlib.suppress(OSError):  # a leader that is gone is noticed by the inbox
                    control.send(connection, reply)
        with contextlib.nullcontext() if inside else _ended_after(_LEAVE_SECONDS):
            follower.leave()
        return message.exit_code


def find_free_port(_rank: Rank, host: str) -> int:
    """Pick a port of ``host``, which is this rank's, that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def journal_path(directory: Path, rank: int) -> Path:
    """Where a rank notes its collectives."""
    return directory / f"rank-{rank}.journal"


def stack_path(directory: Path, rank: int) -> Path:
    """Where a rank writes the stacks of its threads, when it gets `STACK_SIGNAL`."""
    return directory / f"rank-{rank}.stack"


def output_path(directory: Path, rank: int) -> Path:
    """Where what a started rank prints goes, standard error and standard output."""
    return directory / f"rank-{rank}.out"


def _identity_of_new(cls: type[BaseDistBackend]) -> Identity | str:
    try:
        return identity_of(cls())
    except Exception as error:  # for rule 1.3 to judge; a world can start all the same
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _stack_on_signal(directory: Path, rank: int) -> Iterator[None]:
    # faulthandler writes from the signal handler itself: no need of the GIL or of the main thread.
    with stack_path(directory, rank).open("w") as file:
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(STACK_SIGNAL)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process where it takes longer: no leader watches over a rank that was dismissed."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _pickled(error: Exception) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps(error))
    except Exception:  # an exception may hold anything; its traceback travels as text all the same
        return None


def _summary(error: Exception) -> str:
    """The exception's type and the first line of its message, which is what a message begins with.

    Of a SyntaxError Python shows the place, indented, before that.
    """
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    return next(line for line in lines if line and not line[0].isspace())


def _traceback(error: Exception) -> str:
    """The traceback as text, without the harness's own frames on top of it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
