"""A world that goes on when ranks are lost, join late, or come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from disteval.arguments import check_count, check_function, check_seconds
from disteval.errors import WorldError
from disteval.text import name_of
from disteval.traces.folder import Trace
from disteval.world.channel.connection import why_unreachable
from disteval.world.channel.leader import OnNote, OnProgress
from disteval.world.channel.messages import Order, Reply, unpacked
from disteval.world.channel.outcome import Outcome
from disteval.world.environment import refuse_worlds_of_each
from disteval.world.group import WorkerGroup
from disteval.world.launchers import Launcher, get_launcher
from disteval.world.postmortem import PostMortem, RankStatus, first_line, record_failure
from disteval.world.rank import Rank

_TICK_SECONDS = 0.05
_LOOK_SECONDS = 0.5  # between two looks at processes that have not reported
_MESSAGE_SECONDS = 5.0  # that a rank may be frozen within a message

_ONE_PROCESS = (
    "Run this program once, without that launcher, and it starts the ranks itself; or let rank 0 "
    "lead them, as `disteval eval --elastic` does."
)


class LostRank(NamedTuple):
    """A rank that was lost.

    Attributes:
        rank: Its number.
        how: How it was lost, in one line.
        report: All that could be seen of it: its traceback, its stack, the end of its output.
        error: The exception that it raised, as far as it could be pickled.
    """

    rank: int
    how: str
    report: str
    error: Exception | None = None


@dataclass(frozen=True)
class Survival:
    """What came of a function that ran on the ranks of an `ElasticWorld`.

    Attributes:
        values: The return value of each rank that returned.
        lost: The ranks that were lost, in the order in which it was noticed; one that came back
            and was lost again is there twice.
    """

    values: dict[int, Any] = field(default_factory=dict)
    lost: list[LostRank] = field(default_factory=list)


class ElasticWorld(WorkerGroup):
    """Starts or joins ranks without a backend, any of which may be lost at any time.

    It does not wait for its ranks: `run` gives each its order when it reports. With Ray, a rank
    that is lost is started again, on another node where its own is gone.

    Use it as a context manager, or call `close`. It runs one function.

    Args:
        world_size: The number of ranks, from 1 up.
        launcher: How to start the ranks: a name, or a launcher that serves no other world.
        timeout: Seconds in which the ranks should start, at least 60; one that takes longer is
            reported as lost, and takes part when it comes after all.
        threads: Computing threads of each rank; None shares the cores of this host among its ranks.
        trace: As for `World`.

    Raises:
        UsageError: The world size is no positive integer, or there is no such launcher; or this is
            one of several processes that ``mpirun`` or another launcher has started.
        WorldError: No rank could be started.
    """

    def __init__(
        self,
        world_size: int,
        launcher: str | Launcher = "local",
        *,
        timeout: float = 20.0,
        threads: int | None = None,
        trace: Trace = None,
    ) -> None:
        check_count("world size", world_size)
        check_seconds("timeout", timeout)
        if threads is not None:
            check_count("threads", threads)
        if not isinstance(launcher, Launcher):
            refuse_worlds_of_each(_ONE_PROCESS)
            launcher = get_launcher(launcher)
        launcher.elastic, self._ran = True, False
        super().__init__(launcher, world_size, threads, timeout, trace)

    def _start(self, threads: int | None) -> None:
        self._began = time.monotonic()
        inside = self._launcher.start(self._directory, self.world_size, threads)
        self._channel.take_in(inside)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        going_on: Callable[[], bool] = lambda: True,
        on_lost: Callable[[LostRank], None] = lambda _: None,
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
        grace: float = 5.0,
    ) -> Survival:
        """Run ``function(None, arg)`` on each rank, and go on when ranks are lost.

        A rank is lost when its process or thread has ended, or when the function raised. One that
        is stopped or hangs is not: only the caller knows how long it may take, and ``going_on``
        ends the run. Afterwards the world is closed, and all of its processes have ended, but for
        those of somebody else's launcher, which are told to end.

        Args:
            function: Called on every rank; pickled with cloudpickle.
            *args: One argument a rank, in rank order, or none.
            going_on: Called about twenty times a second, in this thread. Once it is False, ranks
                that are left get ``grace`` seconds to return.
            on_lost: Called with each rank that is lost, as soon as that is noticed.
            on_progress: As for `World.run`.
            on_note: As for `World.run`.
            grace: Seconds.

        Raises:
            UsageError: The function can't be called, ``grace`` is no positive number, or the number
                of arguments is neither zero nor the world size.
            WorldError: The world is closed, or has run a function before.
        """
        check_function(function)
        check_seconds("grace", grace)
        if self._ran:
            raise WorldError("this world has run a function, and runs one; start another world")
        on_rank = partial(Rank.run, function=function, world_size=self.world_size)
        what = f"run {name_of(function)}"
        orders = self._pack(on_rank, args, what)
        self._ran = True
        progress = _Run(self, orders, on_lost)
        try:
            with self._recorded(what):
                left = progress.carry_out(going_on, grace, on_progress, on_note)
        except BaseException:
            self._abandon()
            raise
        if left:
            self._channel.dismiss(1)
            self._abandon()
        else:
            self.close()
        return progress.survival

    @property
    def address(self) -> str | None:
        """The address of this host by which the ranks reach it; None if all are on this host."""
        return None if self._hosts.shared else self._hosts.leader

    @property
    def restarts(self) -> bool:
        """Whether a rank that is lost is started again."""
        return self._launcher.restarts

    def look_at(self, rank: int) -> LostRank | None:
        """Return what a rank is doing that is there, and None if it has not reported.

        Call it from ``going_on``.
        """
        if (hello := self._channel.hellos.get(rank)) is None:
            return None
        status = RankStatus(rank, hello)
        self._launcher.examine(self._directory, [status])
        how = "is stopped (SIGSTOP)" if status.stopped else "runs"
        return LostRank(rank, how, str(PostMortem(f"rank {rank} {how}", [status])))


class _Run:
    """The one run of an elastic world."""

    def __init__(
        self, world: ElasticWorld, orders: list[Order], on_lost: Callable[[LostRank], None]
    ) -> None:
        self.survival = Survival()
        self._world, self._channel, self._launcher = world, world._channel, world._launcher
        self._orders, self._on_lost = orders, on_lost
        self._there: set[int] = set()  # that have their order, and neither replied nor were lost
        self._awaited = set(range(world.world_size))  # that have not reported yet
        self._next_look = 0.0
        self._late = False

    def carry_out(
        self,
        going_on: Callable[[], bool],
        grace: float,
        on_progress: OnProgress | None,
        on_note: OnNote | None,
    ) -> bool:
        """Return whether ranks are left that have not returned."""
        deadline, wants_more = math.inf, True
        # Ranks that somebody else started would look for their leader for a minute.
        late = self._awaited if self._world.attached else set()
        for rank in [*self._channel.hellos]:
            self._begin(rank)
        while self._there or late or (wants_more and (self._awaited or self._may_come_back())):
            for rank in self._channel.newcomers():
                self._begin(rank)
            for rank, message in self._channel.received(_TICK_SECONDS):
                if isinstance(message, OSError | EOFError):
                    if rank in self._there:  # and has not replied before
                        unreachable = why_unreachable(message, self._channel.hellos[rank].host)
                        self._lose(rank, unreachable or self._launcher.how_lost(rank))
                elif isinstance(message, Reply):
                    self._take(rank, message)
                else:
                    self._channel.take(rank, message, on_progress, on_note)
            self._look_for_the_missing()
            if wants_more and not going_on():
                wants_more, deadline = False, time.monotonic() + grace
            if time.monotonic() > deadline:
                break
        left = sorted(self._there)
        self._lose_late(left, grace)
        return bool(left or self._awaited)

    def _begin(self, rank: int) -> None:
        if rank in self._there:  # its connection was replaced before it was seen to close
            self._lose(rank, "another process took its place")
        self._launcher.reported(rank)
        self._awaited.discard(rank)
        self._there.add(rank)
        self._world._watch(rank)
        self._channel.order(rank, self._orders[rank], _MESSAGE_SECONDS)

    def _take(self, rank: int, reply: Reply) -> None:
        if reply.value is None:
            return self._lose(rank, f"raised {first_line(reply.message)}", reply)
        try:
            self.survival.values[rank] = unpacked(reply.value, "what it returned")
            self._there.discard(rank)
        except WorldError as error:
            self._lose(rank, str(error))

    def _lose(self, rank: int, how: str, reply: Reply | None = None) -> None:
        self._there.discard(rank)
        self._awaited.discard(rank)
        status = RankStatus(rank, self._channel.hellos.get(rank), reply, end="" if reply else how)
        self._launcher.examine(self._world._directory, [status])
        self._tell(status, how)

    def _tell(self, status: RankStatus, how: str) -> None:
        found = PostMortem(f"rank {status.rank} was lost: {how}", [status])
        replies = {} if status.reply is None else {status.rank: status.reply}
        error = Outcome(1, replies).exceptions().get(status.rank)
        lost = LostRank(status.rank, how, str(found), error)
        self.survival.lost.append(lost)
        if (recorder := self._world._recorder) is not None:
            record_failure(recorder, found)
        self._on_lost(lost)

    def _lose_late(self, ranks: list[int], grace: float) -> None:
        """Say what the ranks were doing that did not return in time."""
        for rank in [] if self._late else sorted(self._awaited):
            self._tell(RankStatus(rank), "had not reported before the end")
        found = [RankStatus(rank, self._channel.hellos[rank]) for rank in ranks]
        self._launcher.examine(self._world._directory, found)
        for status in found:
            late = f"had not returned {grace:g} s after the end"
            self._tell(status, "is stopped (SIGSTOP)" if status.stopped else late)

    def _look_for_the_missing(self) -> None:
        """Report ranks whose processes ended before they reported, or that are late."""
        now = time.monotonic()
        if not self._awaited or now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        for rank in sorted(self._awaited):
            if how := self._launcher.how_ended(rank):
                self._lose(rank, f"{how}, before it reported")
        seconds = self._world._start_seconds
        if self._awaited and not self._late and now > self._world._began + seconds:
            self._late = True
            for rank in sorted(self._awaited):
                how = f"did not report within {seconds:g} s"
                self._tell(RankStatus(rank), how)

    def _may_come_back(self) -> bool:
        """Return whether the launcher starts ranks that were lost again."""
        return self._launcher.restarts and len(self.survival.values) < self._world.world_size
