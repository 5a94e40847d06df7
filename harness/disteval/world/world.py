"""A world: N ranks of one backend and one leader, in lock step."""

from __future__ import annotations

import pickle
import secrets
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from disteval.arguments import check_count, check_function, check_seconds
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.errors import UsageError
from disteval.frames.tags import KEY_BYTES
from disteval.registry import get_backend_class
from disteval.text import name_of
from disteval.traces.folder import Trace
from disteval.world.channel.leader import OnNote, OnProgress
from disteval.world.channel.outcome import Outcome
from disteval.world.clocks import compare_clocks
from disteval.world.environment import OuterWorld, refuse_worlds_of_each
from disteval.world.group import WorkerGroup
from disteval.world.launchers import Launcher, OuterLauncher, get_launcher
from disteval.world.rank import Rank

BACKEND_SECONDS = 86_400.0
"""Seconds that a backend may wait for another rank by default: a day."""

ONE_PROCESS = (
    "Run this program once, without that launcher, and it starts the ranks itself. Or let the "
    "processes join each other without a World, and call disteval.evaluate in each. If each is "
    "meant to have a World of its own, give the World a launcher, such as launcher='local'."
)

LEAVE = "leave the group"
"""The order by which ranks leave it, see `disteval.world.PostMortem.order`."""

W = TypeVar("W", bound="World")


class World(WorkerGroup):
    """Starts or joins a worker group, has it join a backend's group, and runs functions on it.

    The leader is the process that creates the world. Orders travel over connections of their own,
    so they arrive whatever the backend does. Every order has a deadline. When a rank misses it or
    is lost, the world is closed and the error says what each rank was doing.

    Use it as a context manager, or call `close`.

    Args:
        backend: A registered name, or a class that the ranks can import. None starts ranks that
            are in no group until `join` is called.
        world_size: The number of ranks, from 1 up.
        launcher: How to start the ranks: a name, or a launcher that serves no other world; None
            stands for the launcher that the backend's class names, and is refused in one of several
            processes that ``mpirun`` or another launcher has started.
        timeout: Seconds without a reply or a progress message after which an order has failed.
        backend_timeout: Seconds that the backend itself may wait for another rank, given to it in
            `Rendezvous.timeout`. A day by default: the leader sees progress and the backend does
            not, so one that gave up first would end worlds in which a rank is merely slow.
        threads: Computing threads of each rank; None shares the cores of this host among its ranks.
        trace: A new or empty folder in which the leader and each rank record what they do, see
            docs/traces.md; None records nothing.

    Attributes:
        world_size: The number of ranks.
        is_open: Whether the ranks are there and in step.
        attached: Whether somebody else started the ranks, so that others can't be started for them.
        own_processes: Whether each rank is a process of its own that may be ended.

    Raises:
        UsageError: ``world_size`` is below 1, or the backend can't do it; or the launcher can't
            start the backend's ranks; or this is one of several processes and no launcher is given.
        WorldError: The ranks could not start or join in time; says what each was doing.
    """

    def __init__(
        self,
        backend: str | type[BaseDistBackend] | None,
        world_size: int,
        *,
        launcher: str | Launcher | None = None,
        timeout: float = 20.0,
        backend_timeout: float = BACKEND_SECONDS,
        threads: int | None = None,
        trace: Trace = None,
    ) -> None:
        check_seconds("timeout", timeout)
        check_seconds("backend_timeout", backend_timeout)
        if threads is not None:
            check_count("threads", threads)
        cls = None if backend is None else get_backend_class(backend)
        if launcher is None:
            refuse_worlds_of_each(ONE_PROCESS)
        if cls is not None:
            check_world_size(cls, world_size)
            launcher = launcher or cls.launcher
        if launcher is None:
            raise UsageError("ranks without a backend need a launcher; give its name")
        if not isinstance(launcher, Launcher):
            launcher = get_launcher(launcher)
        if cls is not None:
            launcher.accept(cls)
        self._joined = False
        self._rendezvous_count = 0
        super().__init__(launcher, world_size, threads, timeout, trace)
        try:
            self._compare_clocks()
            if cls is not None:
                self.join(cls, backend_timeout)
        except BaseException as error:
            self._close_after(error)
            raise

    def _compare_clocks(self) -> None:
        """Measure the offsets of other hosts' clocks, before any rank records a time."""
        if self._place is not None:
            place = pickle.loads(self._place)
            self._place = None
            offsets = compare_clocks(self._read_clocks)
            self._place = pickle.dumps(place._replace(offsets=offsets))

    def _read_clocks(self) -> tuple[list[tuple[str, int]], dict[int, int]]:
        orders = self._pack(Rank.read_clock, (), "")
        outcome = self._channel.carry_out(orders, self.timeout)
        if not outcome.complete:
            raise self._failure("compare clocks", outcome, self.timeout)
        return outcome.values(), outcome.arrived

    @classmethod
    def lead(
        cls: type[W],
        outer: OuterWorld,
        timeout: float = 20.0,
        interface: str | None = None,
        trace: Trace = None,
    ) -> W:
        """Lead the worker group that this process is rank 0 of; the other ranks must `follow`.

        Its ranks are in no backend's group until `join` is called.

        Args:
            outer: The worker group that a launcher put this process in.
            timeout: As for `World`.
            interface: The network interface on which ranks of other hosts reach this one, or its
                address here; None stands for the one by which this host reaches what the launcher
                names. Where all ranks are on this host it is not used.
            trace: As for `World`; ranks on other hosts write to their own folder of that name.

        Raises:
            UsageError: The ranks are on several hosts, and have no way to find each other.
            WorldError: Not every rank reported in time.
        """
        launcher = OuterLauncher(outer, interface)
        return cls(None, outer.world_size, launcher=launcher, timeout=timeout, trace=trace)

    def load(self, backend: str | type[BaseDistBackend]) -> None:
        """Have every rank import a backend, all at once: importing an MPI library waits for all.

        Raises:
            WorldError: A rank can't import it.
        """
        name = backend if isinstance(backend, str) else backend.__name__
        function = partial(Rank.load, backend=backend, path=sys.path)
        self._order(f"load {name}", function, timeout=self._start_seconds)

    def join(
        self, backend: str | type[BaseDistBackend], backend_timeout: float = BACKEND_SECONDS
    ) -> None:
        """Have every rank join a backend's group, after leaving the group that it is in.

        Args:
            backend: A registered name, or a class that the ranks can import.
            backend_timeout: As for `World`.

        Raises:
            UsageError: The backend can't do this world size, or numbers the ranks otherwise than
                their launcher does.
            WorldError: A rank could not import or join it.
        """
        self.leave()
        self.load(backend)
        cls = get_backend_class(backend)
        check_world_size(cls, self.world_size)
        meetings = self._meetings(backend_timeout)
        function = partial(Rank.join, cls=cls, world_size=self.world_size)
        self._joined = True
        try:
            found = self._order("join the group", function, meetings, self._start_seconds)
            self.check_ranks(cls, found)
        except Exception:
            if self.attached and self.is_open:
                self.leave()
            raise

    def check_ranks(self, cls: type[BaseDistBackend], found: Sequence[tuple[int, int]]) -> None:
        """Refuse a backend that reports other ranks and world sizes than its launcher gave."""
        for rank, (own, size) in enumerate(found):
            if (own, size) != (rank, self.world_size):
                raise UsageError(
                    f"{cls.__name__} says it is rank {own} of {size}, but it runs as rank {rank} "
                    f"of {self.world_size}; its ranks must be started by its own launcher, "
                    f"{cls.launcher!r}"
                )

    def _meetings(self, backend_timeout: float) -> list[Rendezvous]:
        """Return the `Rendezvous` of each rank, in rank order."""
        self._channel.forget_values()
        addresses = self._hosts.ranks
        path = None
        if self._hosts.shared:
            self._rendezvous_count += 1
            path = self._directory / f"rendezvous-{self._rendezvous_count}"
            path.mkdir(mode=0o700)
        # Only rank 0's own host knows which port is free there.
        port, *_ = self._order("find a port", Rank.find_free_port, addresses)
        # Threads of one process need no key, and a process has one key for all its worlds.
        in_processes = self.own_processes or self.attached
        key = secrets.token_bytes(KEY_BYTES) if in_processes else b""
        return [
            Rendezvous(path, addresses[0], port, backend_timeout, own_host=own_host, key=key)
            for own_host in addresses
        ]

    def leave(self) -> None:
        """Have every rank leave the group that it has joined; without one this does nothing."""
        if self._joined:
            self._joined = False
            self._order(LEAVE, Rank.leave)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
    ) -> list[Any]:
        """Run ``function(backend, arg)`` on each rank.

        Args:
            function: Called on every rank; pickled with cloudpickle. The backend is None where the
                ranks have joined no group.
            *args: One argument a rank, in rank order; without arguments each rank calls
                ``function(backend)``.
            timeout: Seconds without a reply or progress; None stands for the world's.
            on_progress: Called whenever a rank calls `disteval.world.report_progress`.
            on_note: Called whenever a rank calls `disteval.world.send_note`, with its value.

        Returns:
            The return value of each rank, in rank order.

        Raises:
            UsageError: The number of arguments is neither zero nor the world size.
            WorldError: A rank raised, was lost, or made no progress. After a mere exception on
                ranks that all replied, the world can be used again; otherwise it is closed.
        """
        check_function(function)
        if timeout is not None:
            check_seconds("timeout", timeout)
        on_rank = partial(Rank.run, function=function, world_size=self.world_size)
        return self._order(f"run {name_of(function)}", on_rank, args, timeout, on_progress, on_note)

    def attempt(
        self, function: Callable[..., Any], *args: Any, awaited: Sequence[int], seconds: float
    ) -> Outcome:
        """Run a function as `run` does where only some ranks will reply, and close the world.

        Args:
            function: As for `run`.
            *args: As for `run`.
            awaited: The ranks that should reply.
            seconds: How long they may take.

        Returns:
            The replies within that time.
        """
        on_rank = partial(Rank.run, function=function, world_size=self.world_size)
        what = f"run {name_of(function)}"
        orders = self._pack(on_rank, args, what)
        try:
            with self._recorded(what):
                return self._channel.carry_out(orders, seconds, awaited=awaited)
        finally:
            self._abandon()


def check_world_size(backend: type[BaseDistBackend], world_size: int) -> None:
    """Refuse a world size that is no positive integer, or that the backend can't do.

    Raises:
        UsageError: Says which and why.
    """
    check_count("world size", world_size)
    if world_size > 1 and (reason := backend.capabilities.why_not("multi_rank")):
        raise UsageError(
            f"{backend.__name__} can't run with world size {world_size}: {reason}; "
            f"use world size 1 or another backend"
        )
