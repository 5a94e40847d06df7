"""What a rank does: take orders, run them with its backend, tell what came back.

A process that the harness started comes here by `harness.worlds.process`; one that is a rank of
somebody's ``mpirun`` or ``torchrun`` calls `serve`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from harness.contract import BaseDistBackend, Rendezvous
from harness.errors import UsageError
from harness.registry import get_backend_class
from harness.worlds import control
from harness.worlds.journal import JournalledBackend

STACK_SIGNAL = signal.SIGUSR1
CONNECT_SECONDS = 60.0
_OWN_FILES = {str(Path(__file__).with_name(name)) for name in ("rank.py", "world.py")}


class Rank:
    """The state of one rank between orders.

    Args:
        directory: The world's control directory.
        rank: Which rank this is.
        connection: The channel to the leader.
    """

    def __init__(self, directory: Path, rank: int, connection: Connection) -> None:
        self.directory = directory
        self.rank = rank
        self.backend: BaseDistBackend | None = None
        self._connection = connection
        self._finalize: Callable[[], None] = lambda: None

    def join(self, spec: str | type[BaseDistBackend], world_size: int, meet: Rendezvous) -> None:
        """Join the group, and check that the backend agrees on who and how many there are."""
        cls = get_backend_class(spec) if isinstance(spec, str) else spec
        cls.init_process(self.rank, world_size, meet)
        self._finalize = cls.finalize_process
        backend = cls()
        if (backend.rank, backend.world_size) != (self.rank, world_size):
            raise UsageError(
                f"{cls.__name__} says it is rank {backend.rank} of {backend.world_size}, but it "
                f"runs as rank {self.rank} of {world_size}; its ranks must be started by its own "
                f"launcher, {cls.launcher!r}"
            )
        self.backend = JournalledBackend(backend, journal_path(self.directory, self.rank))

    def beat(self, done: int, total: int) -> None:
        """Tell the leader that this rank makes progress."""
        control.send(self._connection, control.Beat(done, total))

    def carry_out(self, order: control.Order) -> control.Reply:
        """Run one order; whatever it raises goes into the reply."""
        try:
            function = cloudpickle.loads(order.function)
            arguments = cloudpickle.loads(order.arguments)
            _current.set(self)
            value = control.packed(function(self, *arguments))
        except Exception as error:
            return control.Reply(None, _pickled(error), _traceback(error))
        return control.Reply(value)

    def leave(self) -> None:
        """Leave the group, if this rank has joined one."""
        self._finalize()


_current: ContextVar[Rank | None] = ContextVar("current_rank", default=None)


def beat(done: int, total: int) -> None:
    """Tell the leader that this rank has done ``done`` of ``total`` samples of its order.

    Call it from inside a function that `World.run` runs; it resets the order's deadline. Elsewhere
    it does nothing.
    """
    rank = _current.get()
    if rank is not None:
        rank.beat(done, total)


def serve(directory: Path, rank: int, *, leads: bool = False) -> int:
    """Follow the leader's orders until it dismisses this rank.

    Args:
        directory: The world's control directory.
        rank: Which rank this is.
        leads: Whether the leader lives in this process too. Otherwise the process ends at once when
            the leader is gone, because its main thread may be in a collective for ever.

    Returns:
        The exit code that the leader gave with the dismissal.
    """
    connection = control.connect(directory, CONNECT_SECONDS)
    with contextlib.nullcontext() if leads else _stack_on_signal(directory, rank):
        control.send(connection, control.Hello(rank, os.getpid(), threading.get_ident()))
        orders: queue.Queue[Any] = queue.Queue(maxsize=16)
        threading.Thread(
            target=_read, args=(directory, connection, orders, leads), daemon=True
        ).start()
        follower = Rank(directory, rank, connection)
        while not isinstance(message := orders.get(), control.Dismissal):
            control.send(connection, follower.carry_out(message))
        follower.leave()
        return message.exit_code


def journal_path(directory: Path, rank: int) -> Path:
    """Where a rank notes its collectives."""
    return directory / f"rank-{rank}.journal"


def stack_path(directory: Path, rank: int) -> Path:
    """Where a rank writes the stacks of its threads, when it gets `STACK_SIGNAL`."""
    return directory / f"rank-{rank}.stack"


def output_path(directory: Path, rank: int) -> Path:
    """Where what a started rank prints goes, standard error and standard output."""
    return directory / f"rank-{rank}.out"


def _read(directory: Path, connection: Connection, orders: queue.Queue[Any], leads: bool) -> None:
    """Take orders off the wire in a thread of its own, so that a lost leader is noticed at once."""
    try:
        while True:
            message = control.receive(connection)
            orders.put(message)
            if isinstance(message, control.Dismissal):
                return
    except (EOFError, OSError):
        if not leads:
            shutil.rmtree(directory, ignore_errors=True)  # the leader may have had no time for it
            os._exit(1)
        orders.put(control.Dismissal(1))


@contextlib.contextmanager
def _stack_on_signal(directory: Path, rank: int) -> Iterator[None]:
    # faulthandler writes from the signal handler itself: no need of the GIL or of the main thread.
    with stack_path(directory, rank).open("w") as file:
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(STACK_SIGNAL)


def _pickled(error: Exception) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps(error))
    except Exception:  # an exception may hold anything; its traceback travels as text all the same
        return None


def _traceback(error: Exception) -> str:
    """The traceback as text, without the harness's own frames on top of it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))
