"""A world: N ranks of one backend and one leader, in lock step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from disteval.arguments import check_count
from disteval.contract import BaseDistBackend, No, Rendezvous
from disteval.errors import UsageError, WorldError, exit_code_of
from disteval.registry import get_backend_class
from disteval.worlds import jobs, ray_launcher, thread_launcher  # noqa: F401 - they register
from disteval.worlds.crew import START_SECONDS, Crew
from disteval.worlds.launchers import Launcher, get_launcher
from disteval.worlds.orders import OnNote, OnProgress, Outcome
from disteval.worlds.rank import Rank, find_free_port


class World:
    """Starts the ranks of a backend, runs functions on them, and buries them.

    The leader is the process that creates the world. Orders travel over a private channel, so they
    get through whatever the backend does; every order has a deadline, and when one is missed or a
    rank is lost the world is taken down and the error says what each rank was doing.

    Use it as a context manager, or call `close`.

    Args:
        backend: A registered name, or a class that the ranks can import.
        world_size: How many ranks, from 1 up.
        launcher: How to start them: a name, or a launcher that serves no other world; None stands
            for what the class names.
        timeout: Seconds without a reply or a sign of progress after which an order has failed.
        backend_timeout: Seconds that the backend itself may wait for another rank, as it is told
            in `Rendezvous.timeout`. A day by default: the leader sees progress and the backend does
            not, so one that gave up first would end worlds in which a rank is merely slow.
        threads: Computing threads a rank; None shares the cores of this host among its ranks.
        crew: Ranks that are there already and have left their last world, to be used instead of
            starting processes; they stay when the world is closed.
        believe: Take the backend's word for which rank is which, instead of refusing a world in
            which it differs from the launcher's; a check of the backend looks at that itself.

    Raises:
        UsageError: ``world_size`` is below 1, or not what the backend or the crew can do; or the
            launcher can't start the backend's ranks.
        WorldError: The ranks could not start or join in time; says what each was doing.
    """

    def __init__(
        self,
        backend: str | type[BaseDistBackend],
        world_size: int,
        *,
        launcher: str | Launcher | None = None,
        timeout: float = 20.0,
        backend_timeout: float = 86_400.0,
        threads: int | None = None,
        crew: Crew | None = None,
        believe: bool = False,
    ) -> None:
        if crew is not None:
            # Importing an MPI library joins the job, for which each rank waits for the others.
            load_backend(crew, backend)
        cls = get_backend_class(backend) if isinstance(backend, str) else backend
        check_world_size(cls, world_size)
        if crew is not None and crew.world_size != world_size:
            raise UsageError(
                f"world size {world_size}, but this job has {crew.world_size} ranks, no more and "
                f"no fewer"
            )
        self.world_size = world_size
        self.timeout = timeout
        self._borrowed = crew is not None
        start = max(timeout, START_SECONDS)
        if crew is None:
            crew = _start_crew(cls, world_size, launcher or cls.launcher, threads, start)
        self._crew = crew
        try:
            if not self._borrowed:
                load_backend(crew, cls, start)
            meets = self._rendezvous(backend_timeout)
            arguments = [(cls, world_size, meet, believe) for meet in meets]
            crew.order("join the group", Rank.join, arguments, start)
        except BaseException as error:
            self._leave_after(error)
            raise

    def _rendezvous(self, backend_timeout: float) -> list[Rendezvous]:
        """Return what each rank is told, in rank order."""
        self._crew.exchange.clear()
        hosts = self._crew.hosts
        path = self._crew.fresh_directory("rendezvous") if hosts.shared else None
        addresses = [(host,) for host in hosts.ranks]
        # Only its own host can tell which port is free there.
        port, *_ = self._crew.order("find a port", find_free_port, addresses, self.timeout)
        return [
            Rendezvous(path, hosts.ranks[0], port, backend_timeout, own_host=own_host)
            for own_host in hosts.ranks
        ]

    @property
    def is_open(self) -> bool:
        """Whether the ranks are there and in step."""
        return self._crew.is_open

    @property
    def own_processes(self) -> bool:
        """Whether each rank is a process of its own that may be ended."""
        return self._crew.own_processes

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
            function: Called on every rank; pickled with cloudpickle.
            *args: One argument a rank, in rank order; none calls ``function(backend)``.
            timeout: Seconds without a reply or progress; None stands for the world's.
            on_progress: Called whenever a rank calls `disteval.worlds.report_progress`.
            on_note: Called whenever a rank calls `disteval.worlds.send_note`, with its value.

        Returns:
            What each rank returned, in rank order.

        Raises:
            UsageError: The number of arguments is neither zero nor the world size.
            WorldError: A rank raised, was lost, or made no progress. After a mere exception on
                ranks that all came back, the world can be used again; otherwise it is closed.
        """
        if not self.is_open:
            raise WorldError("this world is closed; start another")
        name = getattr(function, "__name__", repr(function))
        return self._crew.order(
            f"run {name}",
            _run_with_backend,
            self._arguments(function, args),
            timeout or self.timeout,
            on_progress,
            on_note,
        )

    def attempt(
        self, function: Callable[..., Any], *args: Any, awaited: Sequence[int], seconds: float
    ) -> Outcome:
        """Run ``function(backend, arg)`` on ranks not all of which will come back; ends the world.

        Args:
            function: As for `run`.
            *args: As for `run`.
            awaited: The ranks that are expected to come back.
            seconds: How long they may take.

        Returns:
            What came of it within that time.
        """
        arguments = self._arguments(function, args)
        return self._crew.attempt(_run_with_backend, arguments, awaited, seconds)

    def _arguments(
        self, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        if args and len(args) != self.world_size:
            raise UsageError(f"{len(args)} arguments were given for {self.world_size} ranks")
        return [(function, arg) for arg in args] if args else [(function,)] * self.world_size

    def close(self, exit_code: int = 0) -> None:
        """Let every rank leave its group, and end if this world started it; in bounded time.

        Closing twice is fine.

        Args:
            exit_code: The status with which ranks of an outer launcher end.
        """
        if not self._borrowed:
            self._crew.dismiss(exit_code)
        elif self._crew.is_open:
            nothing: list[tuple[Any, ...]] = [()] * self.world_size
            self._crew.order("leave the group", Rank.leave, nothing, self.timeout)

    def __enter__(self) -> World:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._leave_after(error)

    def _leave_after(self, error: BaseException) -> None:
        # Ranks that came back can leave politely; after Ctrl-C above all, nobody waits for that.
        if self._borrowed or (isinstance(error, WorldError) and error.in_step):
            self.close(exit_code_of(error))
        else:
            self._crew.bury()


def _start_crew(
    cls: type[BaseDistBackend],
    world_size: int,
    launcher: str | Launcher,
    threads: int | None,
    seconds: float,
) -> Crew:
    if isinstance(launcher, str):
        launcher = get_launcher(launcher)
    launcher.accept(cls)
    environment = launcher.thread_variables(world_size, threads)
    return Crew(launcher, world_size, environment, seconds)


def load_backend(
    crew: Crew, backend: str | type[BaseDistBackend], seconds: float = START_SECONDS
) -> None:
    """Have every rank import a backend, all at once.

    Raises:
        WorldError: One can't.
    """
    arguments = [(backend, sys.path)] * crew.world_size
    name = backend if isinstance(backend, str) else backend.__name__
    crew.order(f"load {name}", Rank.load, arguments, seconds)


def check_world_size(backend: type[BaseDistBackend], world_size: int) -> None:
    """Refuse a world size that is none, or that the backend can't do.

    Raises:
        UsageError: Says which and why.
    """
    check_count("world size", world_size)
    multi = backend.capabilities.multi_rank
    if world_size > 1 and not multi:
        reason = multi.reason if isinstance(multi, No) else "it does not say why"
        raise UsageError(
            f"{backend.__name__} can't run with world size {world_size}: {reason}; "
            f"use world size 1 or another backend"
        )


def _run_with_backend(rank: Rank, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(rank.backend, *arguments)
