"""A world: N ranks and one leader, in lock step."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from harness.contract import BaseDistBackend, No, Rendezvous
from harness.errors import UsageError, WorldError, exit_code_of
from harness.registry import get_backend_class
from harness.worlds import control
from harness.worlds.attach import OuterLauncher
from harness.worlds.cores import thread_variables
from harness.worlds.launchers import get_launcher
from harness.worlds.muster import Muster
from harness.worlds.orders import OnBeat, Outcome, collect
from harness.worlds.outer import OuterWorld
from harness.worlds.postmortem import Fate, examine, exit_text, report
from harness.worlds.rank import Rank

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
"""Seconds that ranks get at least to start and to join; imports alone can take many."""

_LEAVE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 5.0


class World:
    """Starts the ranks of a backend, runs functions on them, and buries them.

    The leader is the process that creates the world. Orders travel over a private channel, so they
    get through whatever the backend does; every order has a deadline, and when one is missed or a
    rank is lost the world is taken down and the error says what each rank was doing.

    Use it as a context manager, or call `close`.

    Args:
        backend: A registered name, or a class that the ranks can import.
        world_size: How many ranks, from 1 up.
        launcher: How to start them; None stands for what the class names.
        timeout: Seconds without a reply or a sign of progress after which an order has failed.
        backend_timeout: Seconds that the backend itself may wait for another rank, as it is told
            in `Rendezvous.timeout`. A day by default: the leader sees progress and the backend does
            not, so one that gave up first would end worlds in which a rank is merely slow.
        threads: Computing threads a rank; None shares the cores of this host among its ranks.
        outer: The outer world to use instead of starting processes; this process must be its rank
            0, and the others must be in `join_outer_world`.

    Raises:
        UsageError: ``world_size`` is below 1, or not what the backend can do.
        WorldError: The ranks could not start or join in time; says what each was doing.
    """

    def __init__(
        self,
        backend: str | type[BaseDistBackend],
        world_size: int,
        *,
        launcher: str | None = None,
        timeout: float = 20.0,
        backend_timeout: float = 86_400.0,
        threads: int | None = None,
        outer: OuterWorld | None = None,
    ) -> None:
        cls = get_backend_class(backend) if isinstance(backend, str) else backend
        check_world_size(cls, world_size)
        self.world_size = world_size
        self.timeout = timeout
        self._launcher = (
            get_launcher(launcher or cls.launcher) if outer is None else OuterLauncher(outer)
        )
        self._directory = self._launcher.directory()
        self._connections: dict[int, Connection] = {}
        self._members: dict[int, control.Hello] = {}
        self._selector = selectors.DefaultSelector()
        self._open = True
        self._listener = control.open_listener(self._directory, LOOPBACK)
        try:
            self._launcher.start(self._directory, world_size, thread_variables(world_size, threads))
            self._muster(max(timeout, START_SECONDS))
        except BaseException:
            self._bury()
            raise
        meet = Rendezvous(
            self._directory / "rendezvous", LOOPBACK, _free_port(LOOPBACK), backend_timeout
        )
        meet.path.mkdir(mode=0o700)
        arguments = [(backend, world_size, meet)] * world_size
        try:
            self._order("join the group", Rank.join, arguments, max(timeout, START_SECONDS))
        except WorldError as error:
            self._leave_after(error)
            raise

    def _muster(self, seconds: float) -> None:
        """Wait until every rank has reported."""
        muster = Muster(self._listener, self.world_size)
        deadline = time.monotonic() + seconds
        complete = muster.wait(lambda: bool(self._launcher.ended()) or time.monotonic() > deadline)
        self._connections, self._members = muster.connections, muster.members
        for rank, connection in self._connections.items():
            self._selector.register(connection, selectors.EVENT_READ, rank)
        if not complete:
            fates = [self._fate(rank) for rank in range(self.world_size)]
            examine(self._directory, fates)
            ended = self._launcher.ended()
            why = "; ".join(f"process {i}: {exit_text(status)}" for i, status in ended.items())
            headline = why or f"not every rank started within {seconds:g} s"
            raise WorldError(report(headline, fates, self._launcher.log()))

    @property
    def is_open(self) -> bool:
        """Whether the ranks are there and in step."""
        return self._open

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        on_beat: OnBeat | None = None,
    ) -> list[Any]:
        """Run ``function(backend, arg)`` on each rank.

        Args:
            function: Called on every rank; pickled with cloudpickle.
            *args: One argument a rank, in rank order; none calls ``function(backend)``.
            timeout: Seconds without a reply or progress; None stands for the world's.
            on_beat: Called whenever a rank calls `harness.worlds.beat`.

        Returns:
            What each rank returned, in rank order.

        Raises:
            UsageError: The number of arguments is neither zero nor the world size.
            WorldError: A rank raised, was lost, or made no progress. After a mere exception on
                ranks that all came back, the world can be used again; otherwise it is closed.
        """
        if args and len(args) != self.world_size:
            raise UsageError(f"{len(args)} arguments were given for {self.world_size} ranks")
        if not self._open:
            raise WorldError("this world is closed; start another")
        name = getattr(function, "__name__", repr(function))
        arguments: list[tuple[Any, ...]] = [(function, arg) for arg in args]
        if not args:
            arguments = [(function,)] * self.world_size
        return self._order(
            f"run {name}", _run_with_backend, arguments, timeout or self.timeout, on_beat
        )

    def close(self, exit_code: int = 0) -> None:
        """Let every rank leave its group and end, in bounded time; closing twice is fine.

        Args:
            exit_code: The status with which the ranks of an outer world are to end.
        """
        if not self._open:
            return
        for connection in self._connections.values():
            try:
                control.send(connection, control.Dismissal(exit_code))
            except OSError:
                continue  # it is gone already, which is what was asked of it
        self._launcher.wait(_LEAVE_SECONDS)
        self._bury()

    def __enter__(self) -> World:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._leave_after(error)

    def _leave_after(self, error: BaseException) -> None:
        # Ranks that came back can leave politely; after Ctrl-C above all, nobody waits for that.
        if isinstance(error, WorldError) and error.in_step:
            self.close(exit_code_of(error))
        else:
            self._bury()

    def _order(
        self,
        what: str,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        timeout: float,
        on_beat: OnBeat | None = None,
    ) -> list[Any]:
        """Have every rank run ``function(rank, *arguments[r])``; errors say ``what`` it was."""
        code = cloudpickle.dumps(function)
        # All of them before any is sent: what can't be sent leaves the world in step.
        orders = [control.Order(code, control.packed(given)) for given in arguments]
        try:
            for rank, connection in self._connections.items():
                with contextlib.suppress(OSError):  # a lost rank is noticed when reading from it
                    control.send(connection, orders[rank])
            outcome = collect(self._selector, self._connections, timeout, on_beat)
            if outcome.complete:
                return [cloudpickle.loads(r.value) for r in outcome.in_order()]
            raise self._failure(what, outcome, timeout)
        except BaseException as error:
            if not (isinstance(error, WorldError) and error.in_step):
                self._bury()
            raise

    def _failure(self, what: str, outcome: Outcome, timeout: float) -> WorldError:
        fates = [self._fate(rank, outcome) for rank in range(self.world_size)]
        examine(self._directory, fates)
        if outcome.lost:
            self._launcher.wait(_LAST_WORDS_SECONDS)  # mpirun says how the process ended
        lost = []
        if outcome.lost:
            first = outcome.lost[0]
            lost = [f"rank {first} was lost ({exit_text(fates[first].status)})"]
            if others := [str(rank) for rank in outcome.lost[1:]]:
                # A launcher that loses one rank ends the others, so the first is to blame.
                lost.append(f"and then rank{'s' * (len(others) > 1)} {', '.join(others)}")
        raised = [f"rank {f.rank} raised {f.summary}" for f in fates if f.raised]
        late = [str(rank) for rank in outcome.late()]
        silent = f"no progress for {timeout:g} s on rank{'s' * (len(late) > 1)} {', '.join(late)}"
        headline = f"{'; '.join(lost or raised or [silent])}; the order was to {what}"
        text = report(headline, fates, self._launcher.log())
        return WorldError(text, outcome.exceptions(), in_step=outcome.in_step)

    def _fate(self, rank: int, outcome: Outcome | None = None) -> Fate:
        fate = Fate(rank, self._members.get(rank))
        if outcome is None:
            return fate
        reply = outcome.replies.get(rank)
        if reply is not None:
            fate.returned = not reply.trace
            fate.raised = reply.trace
            fate.summary = reply.trace.strip().rpartition("\n")[2]
        if rank in outcome.lost:
            fate.lost = True
            fate.status = self._launcher.rank_status(rank)
        return fate

    def _bury(self) -> None:
        """End every process, and forget the world."""
        if not self._open:
            return
        self._open = False
        self._selector.close()
        for connection in self._connections.values():
            connection.close()
        self._launcher.bury([member.pid for member in self._members.values()])
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def check_world_size(backend: type[BaseDistBackend], world_size: int) -> None:
    """Refuse a world size that is none, or that the backend can't do.

    Raises:
        UsageError: Says which and why.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise UsageError(f"world size must be an integer from 1 up, not {world_size!r}")
    multi = backend.capabilities.multi_rank
    if world_size > 1 and not multi:
        reason = multi.reason if isinstance(multi, No) else "it does not say why"
        raise UsageError(
            f"{backend.__name__} can't run with world size {world_size}: {reason}; "
            f"use world size 1 or another backend"
        )


def _run_with_backend(rank: Rank, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(rank.backend, *arguments)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
