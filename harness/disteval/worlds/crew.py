"""A crew: the ranks that one launcher started or found, and the leader's channel to each.

A `World` has its crew join the group of one backend. A crew that the harness started serves one
world; one that somebody's ``mpirun`` started serves one world after another.
"""

from __future__ import annotations

import contextlib
import selectors
import shutil
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import cloudpickle

from disteval.errors import WorldError, exit_code_of
from disteval.worlds import control
from disteval.worlds.exchange import Exchange
from disteval.worlds.launchers import Launcher
from disteval.worlds.muster import Muster
from disteval.worlds.orders import OnNote, OnProgress, Outcome, collect
from disteval.worlds.postmortem import Fate, report
from disteval.worlds.relay import Relay

START_SECONDS = 60.0
"""Seconds that ranks get at least to start and to join; imports alone can take many."""

_LEAVE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 5.0


class Crew:
    """Starts or finds the ranks, gives them orders, and buries them.

    Args:
        launcher: How they come; it serves this crew alone.
        world_size: How many ranks.
        environment: Variables to set for the ranks.
        seconds: How long they may take to report.

    Attributes:
        world_size: How many ranks.
        directory: The control directory, which the ranks on this host share.
        hosts: Where the leader and the ranks live.
        exchange: What the ranks have published.

    Raises:
        WorldError: Not every rank reported in time; says what is known of each.
    """

    def __init__(
        self, launcher: Launcher, world_size: int, environment: dict[str, str], seconds: float
    ) -> None:
        self.world_size = world_size
        self.exchange = Exchange()
        self._launcher = launcher
        self._connections: dict[int, Connection] = {}
        self._members: dict[int, control.Hello] = {}
        self._selector = selectors.DefaultSelector()
        self._open = True
        self._buried = False
        self._directories = 0
        self._bound = 0.0  # seconds of the waits within a message; to set them costs time
        self.directory = launcher.directory()
        self._relay = Relay(self.directory, world_size)
        self._listener: Listener | None = None
        try:
            self.hosts = launcher.prepare(world_size)
            self._listener, key = control.open_listener(self.directory, self.hosts.leader)
            inside = launcher.start(self.directory, world_size, environment)
            self._muster(Muster(self._listener, key, world_size, inside), seconds)
        except BaseException:
            self._lose()
            self.bury()
            raise

    def _muster(self, muster: Muster, seconds: float) -> None:
        """Wait until every rank has reported."""
        deadline = time.monotonic() + seconds
        complete = muster.wait(lambda: bool(self._launcher.ended()) or time.monotonic() > deadline)
        self._connections, self._members = muster.connections, muster.members
        for rank, connection in self._connections.items():
            self._selector.register(connection, selectors.EVENT_READ, rank)
        if not complete:
            fates = [self._fate(rank) for rank in range(self.world_size)]
            self._launcher.examine(self.directory, fates)
            why = "; ".join(f"process {i}: {how}" for i, how in self._launcher.ended().items())
            headline = why or f"not every rank started within {seconds:g} s"
            raise WorldError(report(headline, fates, self._launcher.log()))

    @property
    def is_open(self) -> bool:
        """Whether the ranks are there and in step."""
        return self._open

    @property
    def attached(self) -> bool:
        """Whether somebody else started the ranks, so that no fresh ones can be had."""
        return self._launcher.attached

    @property
    def own_processes(self) -> bool:
        """Whether each rank is a process of its own that may be ended."""
        return self._launcher.own_processes

    def fresh_directory(self, name: str) -> Path:
        """Create an empty directory in the control directory, private as that is."""
        self._directories += 1
        path = self.directory / f"{name}-{self._directories}"
        path.mkdir(mode=0o700)
        return path

    def order(
        self,
        what: str,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        timeout: float,
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
    ) -> list[Any]:
        """Have every rank run ``function(rank, *arguments[r])``.

        Args:
            what: The order in a few words, for the error.
            function: Called on every rank with its `Rank`.
            arguments: What each rank is given.
            timeout: Seconds without a reply or progress.
            on_progress: Called whenever a rank reports progress.
            on_note: Called whenever a rank tells something.

        Raises:
            WorldError: A rank raised, was lost, or made no progress; unless all came back, the
                crew is lost.
        """
        orders = self._pack(function, arguments)
        try:
            outcome = self._collect(orders, timeout, on_progress, on_note)
            if outcome.complete:
                return [cloudpickle.loads(r.value) for r in outcome.in_order()]
            raise self._failure(what, outcome, timeout)
        except BaseException as error:
            if not (isinstance(error, WorldError) and error.in_step):
                self._lose()
            raise

    def attempt(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        awaited: Sequence[int],
        seconds: float,
    ) -> Outcome:
        """Have every rank run a function that not every rank will return from; ends the crew.

        Returns:
            What came of it within ``seconds``.
        """
        orders = self._pack(function, arguments)
        try:
            return self._collect(orders, seconds, awaited=awaited)
        finally:
            self._lose()

    def _pack(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[control.Order]:
        """All orders before any is sent: what can't be sent leaves the ranks in step."""
        if not self._open:
            raise WorldError("the ranks are gone; nothing can be asked of them")
        code = cloudpickle.dumps(function)
        return [control.Order(code, control.packed(given)) for given in arguments]

    def _collect(
        self,
        orders: Sequence[control.Order],
        timeout: float,
        on_progress: OnProgress | None = None,
        on_note: OnNote | None = None,
        awaited: Sequence[int] | None = None,
    ) -> Outcome:
        for rank, connection in self._connections.items():
            # A rank that is lost or frozen is noticed when reading from it.
            with contextlib.suppress(OSError):
                if timeout != self._bound:
                    control.bound_waits(connection, timeout)
                control.send(connection, orders[rank])
        self._bound = timeout

        def on_message(rank: int, message: Any) -> None:
            if isinstance(message, control.Progress):
                if on_progress is not None:
                    on_progress(rank, message.done, message.total)
                return
            if isinstance(message, control.Note):
                if on_note is not None:
                    on_note(rank, cloudpickle.loads(message.value))
                return
            for reader, found in self.exchange.take(rank, message):
                with contextlib.suppress(OSError):
                    control.send(self._connections[reader], found)

        return collect(self._selector, self._connections, timeout, on_message, awaited)

    def _failure(self, what: str, outcome: Outcome, timeout: float) -> WorldError:
        fates = [self._fate(rank, outcome) for rank in range(self.world_size)]
        self._launcher.examine(self.directory, fates)
        if outcome.lost:
            self._launcher.hear_out(_LAST_WORDS_SECONDS)  # mpirun says how the process ended
        lost = []
        if outcome.lost:
            first = outcome.lost[0]
            lost = [f"rank {first} was lost ({fates[first].end})"]
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
            fate.summary = reply.summary
        if rank in outcome.lost:
            fate.lost = True
            fate.end = self._launcher.how_lost(rank)
        return fate

    def dismiss(self, exit_code: int = 0) -> None:
        """Let every rank end by itself, in bounded time; a second time does nothing.

        Args:
            exit_code: The status with which the processes of an outer launcher are to end.
        """
        if self._open:
            for connection in self._connections.values():
                try:
                    control.send(connection, control.Dismissal(exit_code))
                except OSError:
                    continue  # it is gone already, which is what was asked of it
            self._launcher.wait(_LEAVE_SECONDS)
        self._lose()
        self.bury()

    def _lose(self) -> None:
        """Nothing can be asked of these ranks any more."""
        self._open = False
        # Ranks of somebody's mpirun are left alone until the leader ends: were they to end first,
        # mpirun would end the leader before it has said why. It ends without a farewell, so what
        # they have met in goes now.
        if self._launcher.attached:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.bury()

    def bury(self) -> None:
        """End every process that the harness started, and forget the ranks."""
        if self._buried:
            return
        self._open, self._buried = False, True
        self._selector.close()
        for connection in self._connections.values():
            connection.close()
        self._launcher.bury([member.pid for member in self._members.values()])
        if self._listener is not None:
            self._listener.close()
        self._relay.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._open or not self._launcher.attached:
            self.dismiss(0 if error is None else exit_code_of(error))
