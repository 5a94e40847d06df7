"""A worker group: ranks that a launcher starts or finds, which carry out the orders of a leader."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from disteval.errors import UsageError, WorldError, exit_code_of
from disteval.traces import Recorder
from disteval.traces.folder import Trace, as_folder
from disteval.traces.place import category_of
from disteval.traces.reading import warn_of_unended
from disteval.world.channel.leader import Channel, OnNote, OnProgress
from disteval.world.channel.messages import Order, Reply, packed
from disteval.world.control_directory import ControlDirectory, sweep
from disteval.world.elsewhere import ask_for_calls, examine_elsewhere
from disteval.world.interrupts import interrupted_later
from disteval.world.launchers import Launcher
from disteval.world.output_log import OutputLog
from disteval.world.postmortem import (
    PostMortem,
    RankStatus,
    ended_itself,
    of_order,
    record_failure,
)
from disteval.world.run import Results, Run
from disteval.world.watched import Watched

START_SECONDS = 60.0
"""Seconds that ranks get at least to start and to join; imports alone can take many."""

_LOGGER = logging.getLogger("disteval.world")
_NOTICE_SECONDS = 10.0
_LEAVE_SECONDS = 10.0
_SECONDS_PER_RANK = 1.0  # more, for the cores of a host are shared
_LOG_SECONDS = 5.0

G = TypeVar("G", bound="WorkerGroup")


class WorkerGroup:
    """Ranks in lock step with their leader: the part of a `World` that knows no backend."""

    def __init__(
        self,
        launcher: Launcher,
        world_size: int,
        threads: int | None,
        timeout: float,
        trace: Trace = None,
        *,
        elastic: bool = False,
    ) -> None:
        # Before anything is started: a failed start would terminate the first world's ranks.
        if launcher.serves:
            raise UsageError("this launcher serves a world already; make another")
        self.world_size, self.timeout = world_size, timeout
        self._launcher, launcher.elastic = launcher, elastic
        self.is_open = True
        _groups.add(self)
        self._turn = threading.Lock()
        self.attached, self.own_processes = launcher.attached, launcher.own_processes
        self._channel = Channel(world_size, replaces=elastic)
        self._place: bytes | None = None  # pickled once, because each order has it
        self._recorder: Recorder | None = None
        if (folder := as_folder(trace)) is not None:
            place = folder.new_world(f"with {world_size} rank{'s' * (world_size > 1)}", world_size)
            self._place, self._recorder = pickle.dumps(place), Recorder(place, None)
        with interrupted_later():
            sweep()
            self._control = launcher.directory()
            self._directory = self._control.path
            launcher.watched = Watched(self._directory)
            output_log = OutputLog(self._directory, world_size)
            # Also ends ranks that nobody has closed, when Python ends at the latest.
            parts = os.getpid(), self._channel, launcher, output_log, self._control
            self._end = weakref.finalize(self, _end, *parts, self._recorder)
            self._end.atexit, launcher.serves = not launcher.attached, True
        try:
            self._hosts = launcher.prepare(world_size)
            host = None if self._hosts.shared else self._hosts.leader
            self._channel.listen(self._directory, host, self._hosts.port, self._hosts.key)
            self._start(threads)
        except OSError as error:
            self.terminate()
            raise WorldError(
                f"{world_size} ranks can't be started ({error}); each takes a process, memory, "
                f"files in {self._directory} and up to three open files of this process: start "
                f"fewer, raise the limit (`ulimit -n`, `ulimit -u`), or set TMPDIR to a folder "
                f"with more space"
            ) from error
        except BaseException:
            self.terminate()
            raise

    def _start(self, threads: int | None) -> None:
        begin, notices = time.monotonic(), 0
        self._start_by = begin + self._start_seconds
        inside = self._launcher.start(self._directory, self.world_size, threads)
        if self._launcher.elastic:  # each rank gets its order when it reports
            self._channel.take_in(inside)
            return

        def give_up() -> bool:
            nonlocal notices
            waited = time.monotonic() - begin
            if waited > (notices + 1) * _NOTICE_SECONDS:
                notices += 1
                started = f"{len(self._channel.hellos)} of {self.world_size} ranks have started"
                _LOGGER.warning("%s after %.0f s", started, waited)
            return bool(self._launcher.ended()) or waited > self._start_seconds

        if not self._channel.wait_for_ranks(inside, give_up):
            why = "; ".join(f"process {i}: {how}" for i, how in self._launcher.ended().items())
            started = f"{len(self._channel.hellos)} of {self.world_size} ranks started"
            late = f"{started} within {self._start_seconds:g} s; start fewer, or raise the timeout"
            ended = self._launcher.ended()
            found = PostMortem(
                why or late, self._examine({}, {}),
                ended_itself=any(map(ended_itself, ended.values())),
                launcher_log=self._launcher.log(),
            )  # fmt: skip
            raise WorldError(found, lost=ended)
        if self.attached and not self._hosts.shared:
            seen = [self._channel.hellos[rank].address for rank in range(self.world_size)]
            self._hosts = replace(self._hosts, ranks=[own or self._hosts.leader for own in seen])
        for rank in self._channel.hellos:
            self._watch(rank)

    def _watch(self, rank: int) -> None:
        """Have a rank's process end with this one, if it is one that was started on this host."""
        if self.own_processes and not self.attached and self._hosts.shared:
            self._launcher.watched.add(self._channel.hellos[rank].pid)

    @property
    def _start_seconds(self) -> float:
        return max(self.timeout, START_SECONDS) + _SECONDS_PER_RANK * self.world_size

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
        timeout = timeout or self.timeout
        with self._turn_for(what, function, args) as orders:
            run = Run(self._channel, orders, on_progress, on_note)
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
            ranks[rank].end = how or self._launcher.how_lost(rank)
        if self.attached and not self._hosts.shared:
            examine_elsewhere(self._channel, ranks)
        self._launcher.examine(self._directory, ranks)
        ask_for_calls(self._channel, ranks)
        return ranks

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
                self._launcher.wait(_LEAVE_SECONDS + _SECONDS_PER_RANK * self.world_size)
                if self._place is not None and self._hosts.shared and not self.attached:
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
            self._launcher.watched.end()
            if self._recorder is not None:
                self._recorder.close()
        else:
            self.terminate()

    def terminate(self) -> None:
        """End every process that was started here at once, and remove the control directory.

        A Ctrl-C meanwhile is raised at the end of it.
        """
        with interrupted_later():  # before the finalizer, which runs once
            self.is_open = False
            self._end()

    def _close_after(self, error: BaseException) -> None:
        # Ranks that replied can leave in order; after Ctrl-C above all, nobody waits for that.
        if self.attached or (isinstance(error, Exception) and self.is_open):
            self.close(exit_code_of(error))
        else:
            self.terminate()

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._close_after(error)


_groups: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()


def _leave_to_leader() -> None:
    """Close the worlds of a leader in its fork, where orders would get each other's replies."""
    for group in _groups:
        group.is_open = False


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
    with interrupted_later():
        channel.close()
        launcher.terminate({rank: hello.pid for rank, hello in channel.hellos.items()})
        output_log.close()
        control.remove()
        launcher.watched.end()
        launcher.serves = False
        if recorder is not None:
            recorder.close()
