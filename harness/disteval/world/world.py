"""A world: N ranks of one backend and one leader, in lock step."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from disteval.arguments import check_count, check_function, check_seconds
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.default_backend import is_rank_of_world
from disteval.errors import UsageError, WorldError, exit_code_of
from disteval.frames.tags import KEY_BYTES
from disteval.host import interrupts_held_back, this_machine
from disteval.launched import LaunchedJob, launched_job
from disteval.registry import get_backend_class
from disteval.text import name_of
from disteval.traces import Recorder
from disteval.traces.folder import Offset, Trace, as_folder, category_of, own_clock
from disteval.traces.reading import warn_of_unended
from disteval.world.address import LOOPBACK
from disteval.world.attached import START_SECONDS, OuterLauncher
from disteval.world.channel.leader import Channel, OnNote, OnProgress
from disteval.world.channel.link import Address, write_address
from disteval.world.channel.messages import Order, Reply, packed
from disteval.world.control_directory import ControlDirectory, create, sweep
from disteval.world.launchers import Launcher, get_launcher
from disteval.world.output_log import OutputLog
from disteval.world.postmortem import (
    PostMortem,
    RankStatus,
    ask_for_calls,
    ended_itself,
    examine,
    examine_elsewhere,
    exit_text,
    list_ranks,
    of_order,
    record_failure,
)
from disteval.world.processes import Processes
from disteval.world.rank import Rank
from disteval.world.run import Lends, Results, Run, TolerantRun

BACKEND_SECONDS = 86_400.0
"""Seconds that a backend may wait for another rank by default: a day."""

ONE_PROCESS = (
    "Run this program once, without that launcher, and it starts the ranks itself. Or let the "
    "processes join each other without a World, and call disteval.evaluate in each. If each is "
    "meant to have a World of its own, give the World a launcher, such as launcher='local'."
)

LEAVE = "leave the group"
"""The order by which ranks leave it, see `disteval.world.PostMortem.order`."""

_LOGGER = logging.getLogger("disteval.world")
_CLOCK_ROUNDS = 8
_NOTICE_SECONDS = 10.0
_LEAVE_SECONDS = 10.0
_SECONDS_PER_RANK = 1.0  # more, for the cores of a host are shared
_LOG_SECONDS = 5.0
_STATUS_SECONDS = 1.0  # a connection may close before its process has ended

W = TypeVar("W", bound="World")


class World:
    """Starts or joins a worker group, has it join a backend's group, and runs functions on it.

    The leader is the process that creates the world. Orders travel over connections of their own,
    so they arrive whatever the backend does. Every order has a deadline. When a rank misses it or
    is lost, the world is closed and the error says what each rank was doing; with
    ``on_lost="continue"`` the other ranks go on, and `run` says how each of the others was lost.

    Use it as a context manager, or call `close`.

    Args:
        backend: A registered name, or a class that the ranks can import. None starts ranks that
            are in no group until `join` is called.
        world_size: The number of ranks, from 1 up.
        launcher: How to start the ranks: a name, or a launcher that serves no other world; None
            stands for the launcher that the backend's class names, and is refused in one of several
            processes that ``mpirun`` or another launcher has started.
        on_lost: What happens when a rank raises, or its process or thread ends, during `run`:
            ``"fail"`` ends the world with an error, ``"continue"`` goes on without that rank. With
            ``"continue"`` and no backend, the world does not wait for its ranks to start: `run`
            gives each its order when it reports; with Ray, a rank that is lost is started again, on
            another node where its own is gone.
        timeout: Seconds without a reply or a progress message after which an order has failed.
            Ranks get as long to start, at least 60.
        backend_timeout: Seconds that the backend itself may wait for another rank, given to it in
            `Rendezvous.timeout`. A day by default: the leader sees progress and the backend does
            not, so one that gave up first would end worlds in which a rank is merely slow.
        threads: Computing threads of each rank; None shares the cores of this host among its ranks.
        trace: A new or empty folder in which the leader and each rank record what they do, see
            docs/report.md; None records nothing.

    Attributes:
        world_size: The number of ranks.
        is_open: Whether the ranks are there and in step.
        attached: Whether somebody else started the ranks, so that others can't be started for them.
        own_processes: Whether each rank is a process of its own that may be ended.
        restarts: Whether a rank that is lost is started again.
        folder: The folder of this world on the leader's host, which no other user can enter.

    Raises:
        UsageError: ``world_size`` is below 1, or the backend can't do it; or the launcher can't
            start the backend's ranks; or this is one of several processes and no launcher is given;
            or ``on_lost`` is another word.
        WorldError: The ranks could not start or join in time; says what each was doing.
    """

    def __init__(
        self,
        backend: str | type[BaseDistBackend] | None,
        world_size: int,
        *,
        launcher: str | Launcher | None = None,
        on_lost: Literal["fail", "continue"] = "fail",
        timeout: float = 20.0,
        backend_timeout: float = BACKEND_SECONDS,
        threads: int | None = None,
        trace: Trace = None,
    ) -> None:
        check_count("world size", world_size)
        check_seconds("timeout", timeout)
        check_seconds("backend_timeout", backend_timeout)
        if on_lost not in ("fail", "continue"):
            raise UsageError(f"on_lost={on_lost!r} is unknown; use 'fail' or 'continue'")
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
        # Before anything is started: a failed start would terminate the first world's ranks.
        if launcher.in_use:
            raise UsageError("this launcher serves a world already; make another")
        self.world_size, self.timeout = world_size, timeout
        self.attached, self.own_processes = launcher.attached, launcher.own_processes
        self.is_open, self._joined, self._rendezvous_count = True, False, 0
        self._turn = threading.Lock()
        self._lender: Lends | None = None
        self._goes_on = on_lost == "continue"
        # Ranks of a group can't come late or come back.
        self._launcher, launcher.elastic = launcher, self._goes_on and cls is None
        self.restarts = launcher.restarts and launcher.elastic
        self._channel = Channel(world_size, replaces=launcher.elastic)
        _worlds.add(self)
        self._place: bytes | None = None  # pickled once, because each order has it
        self._recorder: Recorder | None = None
        if (folder := as_folder(trace)) is not None:
            place = folder.new_world(f"with {world_size} rank{'s' * (world_size > 1)}", world_size)
            self._place, self._recorder = pickle.dumps(place), Recorder(place, None)
        with interrupts_held_back():
            sweep()
            launcher.processes = Processes()
            self._control = create(launcher.folder, keep=launcher.processes.keep)
            self.folder = self._control.path
            output_log = OutputLog(self.folder, world_size)
            # Also ends ranks that nobody has closed, when Python ends at the latest.
            parts = os.getpid(), self._channel, launcher, output_log, self._control
            self._end = weakref.finalize(self, _end, *parts, self._recorder)
            self._end.atexit, launcher.in_use = not launcher.attached, True
        try:
            self._start(threads)
        except OSError as error:
            self.terminate()
            raise WorldError(
                f"{world_size} ranks can't be started ({error}); each takes a process, memory, "
                f"files in {self.folder} and up to three open files of this process: start "
                f"fewer, raise the limit (`ulimit -n`, `ulimit -u`), or set TMPDIR to a folder "
                f"with more space"
            ) from error
        except BaseException:
            self.terminate()
            raise
        try:
            if not launcher.elastic:
                self._compare_clocks()
            if cls is not None:
                self.join(cls, backend_timeout)
        except BaseException as error:
            self._close_after(error)
            raise

    def _start(self, threads: int | None) -> None:
        """Start the ranks, and wait for them unless each gets its order when it reports."""
        begin, notices = time.monotonic(), 0
        self._start_by = begin + self._start_seconds
        place = self._launcher.prepare(self.world_size)
        self._on_one_host, place = place is None, place or Address(None)
        self._address = self._channel.listen(replace(place, folder=str(self.folder)))
        write_address(self.folder, self._address)
        inside = self._launcher.start(self.folder, self.world_size, threads)
        if self.attached and not self._on_one_host:
            self._channel.show_life()
        if self._launcher.elastic:
            self._channel.take_in(*inside)
            return

        def give_up() -> bool:
            nonlocal notices
            waited = time.monotonic() - begin
            if waited // _NOTICE_SECONDS > notices:  # also where starting them has taken long
                notices = int(waited // _NOTICE_SECONDS)
                started = f"{len(self._channel.hellos)} of {self.world_size} ranks have started"
                _LOGGER.warning("%s after %.0f s", started, waited)
            return bool(self._ended()) or waited > self._start_seconds

        if not self._channel.wait_for_ranks(inside, give_up):
            ended = self._ended()
            alike = {how: [r for r in ended if ended[r] == how] for how in ended.values()}
            why = [f"{list_ranks(ranks, self.world_size)}: {how}" for how, ranks in alike.items()]
            started = f"{len(self._channel.hellos)} of {self.world_size} ranks started"
            late = f"{started} within {self._start_seconds:g} s; start fewer, or raise the timeout"
            found = PostMortem(
                "; ".join(why) or late, self._examine({}, {}),
                ended_itself=any(map(ended_itself, ended.values())),
                launcher_log=self._launcher.log(),
            )  # fmt: skip
            raise WorldError(found, lost=ended)
        leader = self._address.host or LOOPBACK
        seen = [self._channel.hellos[rank].address for rank in range(self.world_size)]
        self._addresses = [own or leader for own in seen]

    def _ended(self) -> dict[int, str]:
        """Return the ranks that have ended, and how."""
        found = {rank: self._launcher.how_ended(rank) for rank in range(self.world_size)}
        return {rank: how for rank, how in found.items() if how}

    def _how_lost(self, rank: int) -> str:
        """Return how a rank ended whose connection has closed."""
        return self._launcher.how_ended(rank, _STATUS_SECONDS) or exit_text(None)

    @property
    def _start_seconds(self) -> float:
        return max(self.timeout, START_SECONDS) + _SECONDS_PER_RANK * self.world_size

    def _compare_clocks(self) -> None:
        """Measure the offsets of other hosts' clocks, before any rank records a time.

        By Cristian's method (Distributed Computing 3, 1989): a rank has read its clock somewhere
        between the order and the reply, so its time is that of the middle, and wrong by at most
        half of the round trip. The shortest of several round trips is taken.
        """
        if self._place is None:
            return
        place, self._place = pickle.loads(self._place), None
        offsets: dict[int, Offset] = {}
        for turn in range(_CLOCK_ROUNDS):
            if turn and not offsets:  # one machine has one clock
                break
            run = Run(self, self._pack(Rank.read_clock, (), ""))
            sent = time.monotonic_ns()
            run.carry_out(self.timeout)
            if run.failed or not run.in_step:
                raise self._failure("compare clocks", run, self.timeout)
            for rank, (clock, theirs) in enumerate(run.finish()):
                error = (run.arrived[rank] - sent) // 2
                if clock != own_clock() and (rank not in offsets or error < offsets[rank].error):
                    offsets[rank] = Offset(sent + error - theirs, error, "round trips")
        self._place = pickle.dumps(place._replace(offsets=offsets))

    @classmethod
    def lead(
        cls: type[W],
        outer: LaunchedJob,
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
            UsageError: The world does not wait for its ranks.
            WorldError: A rank can't import it.
        """
        if self._launcher.elastic:
            raise UsageError(
                "a world without a backend and with on_lost='continue' does not wait for its ranks,"
                " so they can join no group; give World the backend when it starts"
            )
        name = backend if isinstance(backend, str) else backend.__name__
        function = partial(Rank.load, backend=backend, path=sys.path)
        seconds = self._start_seconds
        # Only rank 0's own host knows which port is free there.
        self._port, *_ = self._order(f"load {name}", function, self._addresses, seconds)

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
        path = None
        if self._on_one_host:
            self._rendezvous_count += 1
            path = self.folder / f"rendezvous-{self._rendezvous_count}"
            path.mkdir(mode=0o700)
        # Threads of one process need no key, and a process has one key for all its worlds.
        in_processes = self.own_processes or self.attached
        key = secrets.token_bytes(KEY_BYTES) if in_processes else b""
        return [
            Rendezvous(path, self._addresses[0], self._port, backend_timeout, own_host=own, key=key)
            for own in self._addresses
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
        on_lost: Callable[[RankStatus], None] | None = None,
        until: Callable[[Results], bool] | None = None,
        grace: float = 5.0,
    ) -> Results:
        """Run ``function(backend, arg)`` on each rank.

        Where the world goes on when ranks are lost, it is closed afterwards if one was: its
        processes have ended then, but for those of somebody else's launcher, which are told to end.

        Args:
            function: Called on every rank; pickled with cloudpickle. The backend is None where the
                ranks have joined no group.
            *args: One argument a rank, in rank order; without arguments each rank calls
                ``function(backend)``.
            timeout: Seconds without a reply or progress; None stands for the world's.
            on_progress: Called whenever a rank calls `disteval.world.report_progress`.
            on_note: Called whenever a rank calls `disteval.world.send_note`, with its value.
            on_lost: Called with each rank that is lost, as soon as that is noticed. With it this
                run goes on without lost ranks as if the world had ``on_lost="continue"``.
            until: Where the run goes on when ranks are lost: called about twenty times a second in
                this thread, with what has come so far. Once it returns true, ranks that are left
                get ``grace`` seconds to return, and are lost otherwise. None stands for a
                ``timeout`` without progress; with ``until``, only that ends ranks that hang.
            grace: Seconds.

        Returns:
            The return value of each rank, in rank order, and which ranks were lost.

        Raises:
            UsageError: The number of arguments is neither zero nor the world size, or an argument
                of this call is wrong.
            WorldError: A rank raised, was lost, or made no progress. After a mere exception on
                ranks that all replied, the world can be used again; otherwise it is closed.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        check_function(function)
        if timeout is not None:
            check_seconds("timeout", timeout)
        check_seconds("grace", grace)
        on_rank = partial(Rank.run, function=function, world_size=self.world_size)
        what = f"run {name_of(function)}"
        if on_lost is None and not self._goes_on:
            return self._order(what, on_rank, args, timeout, on_progress, on_note)
        with self._turn_for(what, on_rank, args) as orders:
            run = TolerantRun(self, orders, on_progress, on_note, on_lost, self._lender)
            with self._recorded(what):
                is_left = run.go_on(until, grace, timeout or self.timeout)
        if is_left:
            self._channel.dismiss(1)
        if is_left or (run.results.lost and self._joined):  # such a group can't be left in order
            self._abandon()
        elif run.results.lost:
            self.close()
        return run.results

    def lend(self, lender: Lends, named: Address | None = None) -> None:
        """Have `run` feed a lender, until the ranks that others have started have its outcome.

        Args:
            lender: Called in the thread that calls `run`.
            named: Where others may join, on this host; None stands for where the ranks of this
                world have met, which must go on when ranks are lost.
        """
        self._lender = lender
        if named is not None:
            self._address = self._channel.listen(named)

    @contextmanager
    def announced(self, path: Path) -> Iterator[None]:
        """Have a file of mode 600 say in the block where others join a world that lends.

        It is removed also when this process is killed.

        Raises:
            OSError: It can't be written.
        """
        self._launcher.processes.announce(path, self._address.dump())
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()

    def _order(
        self,
        what: str,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
    ) -> Results:
        """Run ``function(rank, arg)`` on each `Rank`, as `World.run` does with a user's function.

        ``what`` is the order in a few words, for the error.
        """
        __tracebackhide__ = True
        timeout = timeout or self.timeout
        with self._turn_for(what, function, args) as orders:
            run = Run(self, orders, on_progress, on_note)
            with self._recorded(what):
                run.carry_out(timeout)
            if run.in_step and not run.failed:
                return run.finish()
            raise self._failure(what, run, timeout)

    @contextmanager
    def _turn_for(
        self, what: str, function: Callable[..., Any], args: Sequence[Any]
    ) -> Iterator[list[Order]]:
        """Have the turn to give orders; ranks that a failure leaves out of step are ended."""
        orders = self._pack(function, args, what)
        if not self._turn.acquire(blocking=False):
            busy = f"this world carries out an order, and can't {what} before that has returned"
            raise UsageError(f"{busy}; let one thread give its orders, or start another world")
        try:
            yield orders
        except BaseException as error:
            if not (isinstance(error, WorldError) and error.in_step):
                self._abandon()
            raise
        finally:
            self._turn.release()

    def _recorded(self, what: str) -> AbstractContextManager[None]:
        """Record an order in the leader's row of the trace, if there is one."""
        recorder = self._recorder
        return nullcontext() if recorder is None else recorder.span(category_of(what), what)

    def _pack(self, function: Callable[..., Any], args: Sequence[Any], what: str) -> list[Order]:
        """Pickle all orders before any is sent: an argument that fails leaves the ranks in step."""
        if not self.is_open:
            closed = "this world is closed, so its ranks take no orders; start another"
            raise WorldError(f"{closed}. In a forked child of the leader, every world is closed")
        if args and len(args) != self.world_size:
            count = f"{len(args)} argument{'s were' if len(args) > 1 else ' was'} given"
            raise UsageError(
                f"{count} for {self.world_size} ranks, and each rank takes one; repeat an argument "
                f"that is for all of them: world.run(function, *[argument] * {self.world_size})"
            )
        code = packed(function, "the function")
        trace = None if self._place is None else (self._place, what)
        if not args:
            return [Order(code, packed(()), trace)] * self.world_size
        return [Order(code, packed((arg,), f"argument {i}"), trace) for i, arg in enumerate(args)]

    def _failure(self, what: str, run: Run, timeout: float) -> WorldError:
        """Return the error of an order that not every rank has carried out."""
        ranks = self._examine(run.replies, run.lost)
        # mpirun logs how the process ended.
        log = self._launcher.log(_LOG_SECONDS if run.lost else 0.0)
        found = of_order(what, [*run.lost], ranks, timeout, log)
        if self._recorder is not None:
            record_failure(self._recorder, found)
        errors = {status.rank: error for status in ranks if (error := status.error) is not None}
        return WorldError(found, errors, in_step=run.in_step, lost=run.lost)

    def _examine(self, replies: Mapping[int, Reply], lost: Mapping[int, str]) -> list[RankStatus]:
        """Return the status of each rank, with all that can be seen of it from outside."""
        hellos = self._channel.hellos
        # Without the values, since other hosts may have to be asked.
        replies = {rank: reply._replace(value=None) for rank, reply in replies.items()}
        ranks = [RankStatus(r, hellos.get(r), replies.get(r)) for r in range(self.world_size)]
        for rank, how in lost.items():
            ranks[rank].end = how or self._how_lost(rank)
        examine_elsewhere(self._channel, ranks)
        examine(self.folder, ranks)
        ask_for_calls(self._channel, ranks)
        return ranks

    def look_at(self, rank: int) -> RankStatus | None:
        """Return what a rank is doing, and None if it has not reported; for ``until`` of `run`."""
        if (hello := self._channel.hellos.get(rank)) is None:
            return None
        status = RankStatus(rank, hello)
        examine(self.folder, [status])
        return status

    def close(self, exit_code: int = 0) -> None:
        """Have every rank leave its group and end, in bounded time.

        Closing twice is fine. Ranks that somebody else has started and that are lost are left to
        their launcher.

        Args:
            exit_code: The status with which ranks of an outer launcher end.
        """
        try:
            if self.is_open:
                self._channel.dismiss(exit_code)
                deadline = time.monotonic() + _LEAVE_SECONDS + _SECONDS_PER_RANK * self.world_size
                for rank in [0] if self.attached else range(self.world_size):
                    self._launcher.how_ended(rank, max(0.0, deadline - time.monotonic()))
                if self._place is not None and self._on_one_host and not self.attached:
                    warn_of_unended(pickle.loads(self._place))
        finally:
            if self.is_open or not self.attached:
                self.terminate()

    def _abandon(self) -> None:
        """End ranks that are no longer in step."""
        self.is_open = False
        # Ranks of somebody's mpirun are left alone until the leader ends: if they ended first,
        # mpirun would end the leader before it has said why. The leader then ends without exit
        # handlers, so the control directory is removed now.
        if self.attached:
            self._control.remove()
            self._launcher.processes.close()
            if self._recorder is not None:
                self._recorder.close()
        else:
            self.terminate()

    def terminate(self) -> None:
        """End every process that was started here at once, and remove the control directory.

        A Ctrl-C meanwhile is raised at the end of it.
        """
        with interrupts_held_back():  # before the finalizer, which runs once
            self.is_open = False
            self._end()

    def _close_after(self, error: BaseException) -> None:
        # Ranks that replied can leave in order; after Ctrl-C above all, nobody waits for that.
        if self.attached or (isinstance(error, Exception) and self.is_open):
            self.close(exit_code_of(error))
        else:
            self.terminate()

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._close_after(error)


def refuse_worlds_of_each(remedy: str) -> None:
    """Refuse to start ranks in each of several processes that a launcher has started.

    A rank of a world may start another world: its function was written to run in each rank.

    Args:
        remedy: What the caller can do instead, as sentences.

    Raises:
        UsageError: Says who started this process; or the launcher's variables are wrong.
    """
    job = None if is_rank_of_world() else launched_job()
    if job is not None and job.world_size > 1:
        raise UsageError(f"{job}; each of them would start ranks of its own. {remedy}")


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


_worlds: weakref.WeakSet[World] = weakref.WeakSet()


def _leave_to_leader() -> None:
    """Close the worlds of a leader in its fork, where orders would get each other's replies."""
    for world in _worlds:
        world.is_open = False


os.register_at_fork(after_in_child=_leave_to_leader)


def _end(
    leader: int,
    channel: Channel,
    launcher: Launcher,
    output_log: OutputLog,
    control: ControlDirectory,
    recorder: Recorder | None,
) -> None:
    if os.getpid() != leader:  # a fork of the leader, whose ranks are not its own
        return
    with interrupts_held_back():
        channel.close()
        here = [h for h in channel.hellos.items() if h[1].machine in ("", this_machine())]
        launcher.end({rank: hello.pid for rank, hello in here})
        output_log.close()
        control.remove()
        launcher.processes.close()
        launcher.in_use = False
        if recorder is not None:
            recorder.close()
