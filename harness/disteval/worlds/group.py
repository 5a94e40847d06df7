"""A worker group: ranks that a launcher starts or finds, which carry out the orders of a leader."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from disteval.errors import UsageError, WorldError, exit_code_of
from disteval.worlds.channel.leader import Channel, OnNote, OnProgress
from disteval.worlds.channel.messages import Order
from disteval.worlds.channel.outcome import Outcome
from disteval.worlds.launchers import Launcher
from disteval.worlds.output_log import OutputLog
from disteval.worlds.postmortem import RankStatus, report

START_SECONDS = 60.0
"""Seconds that ranks get at least to start and to join; imports alone can take many."""

_LEAVE_SECONDS = 10.0
_LOG_SECONDS = 5.0

G = TypeVar("G", bound="WorkerGroup")


class WorkerGroup:
    """Ranks in lock step with their leader: the part of a `World` that knows no backend.

    Args:
        launcher: How to start the ranks; it serves this group alone.
        world_size: The number of ranks.
        environment: Variables to set for the ranks.
        timeout: Seconds without a reply or a progress message after which an order has failed.

    Attributes:
        world_size: The number of ranks.
        timeout: See above.

    Raises:
        WorldError: Not every rank reported in time; says what is known of each.
    """

    def __init__(
        self, launcher: Launcher, world_size: int, environment: dict[str, str], timeout: float
    ) -> None:
        self.world_size = world_size
        self.timeout = timeout
        self._launcher = launcher
        self._open, self._ended = True, False
        self._channel = Channel(world_size)
        self._directory = launcher.directory()
        self._output_log = OutputLog(self._directory, world_size)
        try:
            self._hosts = launcher.prepare(world_size)
            self._channel.listen(self._directory, self._hosts.leader)
            self._wait_for_ranks(launcher.start(self._directory, world_size, environment))
        except BaseException:
            self.terminate()
            raise

    def _wait_for_ranks(self, inside: Sequence[Connection]) -> None:
        seconds = self._start_seconds
        deadline = time.monotonic() + seconds

        def give_up() -> bool:
            return bool(self._launcher.ended()) or time.monotonic() > deadline

        if not self._channel.wait_for_ranks(inside, give_up):
            why = "; ".join(f"process {i}: {how}" for i, how in self._launcher.ended().items())
            headline = why or f"not every rank started within {seconds:g} s"
            ranks = self._examine(Outcome(self.world_size))
            raise WorldError(report(headline, ranks, self._launcher.log()))

    @property
    def _start_seconds(self) -> float:
        return max(self.timeout, START_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether the ranks are there and in step."""
        return self._open

    @property
    def attached(self) -> bool:
        """Whether somebody else started the ranks, so that others can't be started for them."""
        return self._launcher.attached

    @property
    def own_processes(self) -> bool:
        """Whether each rank is a process of its own that may be ended."""
        return self._launcher.own_processes

    def _order(
        self,
        what: str,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
    ) -> list[Any]:
        """Run ``function(rank, arg)`` on each `Rank`.

        Args:
            what: The order in a few words, for the error.
            function: Called on every rank; pickled with cloudpickle.
            args: One argument a rank, in rank order, or no arguments.
            timeout: Seconds without a reply or progress; None stands for the group's.
            on_progress: Called with each progress message.
            on_note: Called with each note.

        Returns:
            The return value of each rank, in rank order.

        Raises:
            UsageError: The number of arguments is neither zero nor the world size.
            WorldError: A rank raised, was lost, or made no progress. Unless all ranks replied, the
                group can't be used again.
        """
        timeout = timeout or self.timeout
        orders = self._pack(function, args)
        try:
            outcome = self._channel.carry_out(orders, timeout, on_progress, on_note)
            if outcome.complete:
                return outcome.values()
            raise self._failure(what, outcome, timeout)
        except BaseException as error:
            if not (isinstance(error, WorldError) and error.in_step):
                self._abandon()
            raise

    def _attempt(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        awaited: Sequence[int],
        seconds: float,
    ) -> Outcome:
        """Run ``function(rank, arg)`` where only the awaited ranks will reply; ends the group."""
        orders = self._pack(function, args)
        try:
            return self._channel.carry_out(orders, seconds, awaited=awaited)
        finally:
            self._abandon()

    def _pack(self, function: Callable[..., Any], args: Sequence[Any]) -> list[Order]:
        """Pickle all orders before any is sent: an argument that fails leaves the ranks in step."""
        if not self._open:
            raise WorldError("this world is closed, so its ranks take no orders; start another")
        if args and len(args) != self.world_size:
            raise UsageError(f"{len(args)} arguments were given for {self.world_size} ranks")
        return self._channel.pack(function, args)

    def _failure(self, what: str, outcome: Outcome, timeout: float) -> WorldError:
        """Return the error of an order that not every rank has carried out."""
        ranks = self._examine(outcome)
        lost = []
        if outcome.lost:
            self._launcher.wait_for_log(_LOG_SECONDS)  # mpirun logs how the process ended
            first = outcome.lost[0]
            lost = [f"rank {first} was lost ({ranks[first].end})"]
            if others := [str(rank) for rank in outcome.lost[1:]]:
                # A launcher that loses one rank ends the others, so the first is to blame.
                lost.append(f"and then rank{'s' * (len(others) > 1)} {', '.join(others)}")
        raised = [f"rank {s.rank} raised {s.summary}" for s in ranks if s.raised]
        late = [str(rank) for rank in outcome.late()]
        silent = f"no progress for {timeout:g} s on rank{'s' * (len(late) > 1)} {', '.join(late)}"
        headline = f"{'; '.join(lost or raised or [silent])}; the order was to {what}"
        text = report(headline, ranks, self._launcher.log())
        return WorldError(text, outcome.exceptions(), in_step=outcome.in_step)

    def _examine(self, outcome: Outcome) -> list[RankStatus]:
        """Return the status of each rank, with all that can be seen of it from outside."""
        ranks = [RankStatus(r, self._channel.hellos.get(r)) for r in range(self.world_size)]
        for rank, reply in outcome.replies.items():
            ranks[rank].returned = not reply.trace
            ranks[rank].raised, ranks[rank].summary = reply.trace, reply.summary
        for rank in outcome.lost:
            ranks[rank].lost, ranks[rank].end = True, self._launcher.how_lost(rank)
        self._launcher.examine(self._directory, ranks)
        return ranks

    def close(self, exit_code: int = 0) -> None:
        """Have every rank leave its group and end, in bounded time.

        Closing twice is fine. Ranks that somebody else has started and that are lost are left to
        their launcher.

        Args:
            exit_code: The status with which ranks of an outer launcher end.
        """
        if self._open:
            self._channel.dismiss(exit_code)
            self._launcher.wait(_LEAVE_SECONDS)
        if self._open or not self.attached:
            self.terminate()

    def _abandon(self) -> None:
        """End ranks that are no longer in step."""
        self._open = False
        # Ranks of somebody's mpirun are left alone until the leader ends: if they ended first,
        # mpirun would end the leader before it has said why. The leader then ends without exit
        # handlers, so the control directory is removed now.
        if self.attached:
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            self.terminate()

    def terminate(self) -> None:
        """End every process that was started here at once, and remove the control directory."""
        if self._ended:
            return
        self._open, self._ended = False, True
        self._channel.close()
        self._launcher.terminate([hello.pid for hello in self._channel.hellos.values()])
        self._output_log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _close_after(self, error: BaseException) -> None:
        # Ranks that replied can leave in order; after Ctrl-C above all, nobody waits for that.
        if self.attached or (isinstance(error, Exception) and self._open):
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
