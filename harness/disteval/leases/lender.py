"""The lender of leases: a thread that outlives its ranks."""

from __future__ import annotations

import logging
import math
import os
import selectors
import threading
import time
from pathlib import Path
from typing import Any

from disteval.data.predictions import Predictions
from disteval.errors import HarnessError, WorldError, describe_error
from disteval.leases.book import Counts
from disteval.leases.lending import Lending
from disteval.leases.mailbox import Mailbox
from disteval.leases.members import Member, OnEvent
from disteval.world.channel.connection import Address
from disteval.world.channel.listener import Listener
from disteval.world.channel.messages import Finished, Join, LeaseReport

_log = logging.getLogger("disteval.leases")
_TICK_SECONDS = 0.25
_HELLO_SECONDS = 30.0  # in which the first message of a rank must have arrived


class _Guest:
    """A connection whose rank is not known before its Join."""

    def __init__(self, mailbox: Mailbox, now: float) -> None:
        self.mailbox = mailbox
        self.deadline = now + _HELLO_SECONDS
        self.is_writing = False  # whether the selector says when the rank reads
        self.member: Member | None = None


class Lender:
    """Lends leases to ranks until all are committed, in a thread of its own.

    It never waits for a single rank: one that is frozen, dies in the middle of a message or sends
    something else loses its lease, and delays no other rank.

    Args:
        folder: The folder of the ledger; None keeps it in memory.
        directory: A control directory.
        host: The address to listen on; None listens in the directory, for ranks of this host.
        port: See `Listener`, as for the key.
        key: See there.
        timeout: The seconds of silence after which a rank has lost its lease.
        ranks_per_lease: The number of consecutive ranks that hold a lease together.
        in_turns: Whether the ranks of a lease evaluate different batches of it.
        expected: The number of ranks that were started; None if it is not known.
        on_event: Called in the lender's thread with what happens to ranks.
        predictions: Where ranks write predictions, if they do. What lies there damaged is
            evaluated again; without ``folder``, the ledger is there until the result is.
    """

    def __init__(
        self,
        folder: Path | None,
        directory: Path,
        host: str | None = None,
        port: int = 0,
        key: bytes = b"",
        *,
        timeout: float = 60.0,
        ranks_per_lease: int = 1,
        in_turns: bool = False,
        expected: int | None = None,
        on_event: OnEvent | None = None,
        predictions: Predictions | None = None,
    ) -> None:
        self._lending = Lending(
            folder, timeout, ranks_per_lease, expected, on_event, predictions, in_turns=in_turns
        )
        self._timeout = timeout
        self._listener = Listener(directory, host, expected or 1, port, key)
        self._guests: set[_Guest] = set()
        self._lock = threading.RLock()  # of the lending, which the leader asks for its counts
        self._ended = threading.Event()
        self._leave_by = math.inf
        self._selector = selectors.DefaultSelector()
        self._pipe: tuple[int, ...] = os.pipe()  # by which other threads wake this one
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="disteval-lender", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """The address and the key by which ranks reach it."""
        return self._listener.address

    def __enter__(self) -> Lender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The error may be the outcome, for which the other ranks wait; an interrupt never is.
        self.close(None if kind is None or issubclass(kind, Exception) else 0.0)

    @property
    def counts(self) -> Counts:
        """How far the evaluation is, in units."""
        with self._lock:
            return self._lending.counts

    @property
    def rates(self) -> dict[int, float]:
        """The units per second of each group of ranks."""
        with self._lock:
            return self._lending.rates

    @property
    def report(self) -> LeaseReport:
        """What has happened to leases so far."""
        with self._lock:
            return self._lending.report

    @property
    def outcome(self) -> Finished | None:
        """The end of the evaluation; None before."""
        return self._lending.outcome

    def wait(self, seconds: float) -> bool:
        """Pong so long for the end of the evaluation; return whether it has ended."""
        return self._ended.wait(seconds)

    def fail(self, error: Exception) -> None:
        """End the evaluation with an error; ranks that ask get it, and the ledger is kept."""
        with self._lock:
            self._lending.fail(error)
        self._wake()

    def close(self, patience: float | None = None) -> None:
        """End the thread, once every rank that is connected has the result.

        Args:
            patience: For how many seconds ranks are waited for that do not read it; None is the
                timeout. Ranks that connect later find the lender gone.
        """
        self._leave_by = time.monotonic() + (self._timeout if patience is None else patience)
        self._wake()
        self._thread.join()
        with self._lock:
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = ()

    def _wake(self) -> None:
        with self._lock:
            if self._pipe:
                os.write(self._pipe[1], b".")

    def _run(self) -> None:
        try:
            while not self._may_leave(time.monotonic()):
                ready = self._selector.select(_TICK_SECONDS)
                with self._lock:
                    self._turn(ready)
                if self._lending.outcome is not None:
                    self._ended.set()
        except Exception as error:  # ranks and the leader wait for this thread
            _log.exception("the lender of leases failed")
            self._lending.fail(_as_ours(error))
            self._ended.set()
        finally:
            self._listener.close()
            self._selector.close()
            for guest in self._guests:
                guest.mailbox.close()
            self._lending.close()

    def _turn(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        now = time.monotonic()
        try:
            with self._lending.together():
                for key, events in ready:
                    guest: _Guest | None = key.data
                    if guest is None:
                        if key.fileobj == self._pipe[0]:
                            os.read(self._pipe[0], 4096)
                    elif guest in self._guests:
                        self._attend(guest, events, now)
                self._admit(now)
                self._lending.tick(now)
        except HarnessError as error:  # as of a ledger whose disk is full
            self._lending.fail(error)
        self._lending.announce()
        for guest in [*self._guests]:
            if guest.member is None and guest.deadline < now:
                self._part(guest, "it did not say which rank it is", now)
            elif guest.member is not None and guest.member.mailbox is not guest.mailbox:
                self._part(guest, "it has another connection", now)
            elif guest.mailbox.has_unsent != guest.is_writing:
                guest.is_writing = guest.mailbox.has_unsent
                events = selectors.EVENT_READ | (guest.is_writing and selectors.EVENT_WRITE)
                self._selector.modify(guest.mailbox.socket, events, guest)

    def _admit(self, now: float) -> None:
        try:
            connections = self._listener.admit(0.0)
        except WorldError as error:  # too many open files; ranks that are there go on
            _log.warning("%s", error)
            return
        for connection in connections:
            try:
                guest = _Guest(Mailbox(connection), now)
            except OSError as error:  # too many open files, which is no fault of the ledger
                _log.warning("a rank can't be admitted: %s", error)
                connection.close()
                continue
            self._guests.add(guest)
            self._selector.register(guest.mailbox.socket, selectors.EVENT_READ, guest)
            self._attend(guest, selectors.EVENT_READ, now)

    def _attend(self, guest: _Guest, events: int, now: float) -> None:
        """Send what waits, and take the messages that have arrived."""
        try:
            if events & selectors.EVENT_WRITE:
                guest.mailbox.flush()
            messages = guest.mailbox.receive() if events & selectors.EVENT_READ else []
        except (EOFError, OSError) as error:
            self._part(guest, f"its connection ended ({describe_error(error)})", now)
            return
        except ValueError as error:
            self._part(guest, f"it sent {error}", now)
            return
        for message in messages:
            if not self._take(guest, message, now):
                return

    def _take(self, guest: _Guest, message: Any, now: float) -> bool:
        """Do what one message asks for; return whether the rank stays."""
        try:
            if guest.member is not None:
                self._lending.take(guest.member, message, now)
                return True
            if isinstance(message, Join):
                guest.member = self._lending.join(message, guest.mailbox, now)
                return True
            self._part(guest, "it sent another message before its Join", now)
        except HarnessError:  # the ledger can't be written
            raise
        except Exception as error:
            self._part(guest, f"it sent a message that makes no sense ({error!r})", now)
        return False

    def _part(self, guest: _Guest, why: str, now: float) -> None:
        self._guests.discard(guest)
        self._selector.unregister(guest.mailbox.socket)
        if guest.member is not None and guest.member.mailbox is guest.mailbox:
            self._lending.drop(guest.member, why, now)
        guest.mailbox.close()

    def _may_leave(self, now: float) -> bool:
        """Return whether the leader has closed this, and every rank that answers has the result."""
        if self._leave_by == math.inf:
            return False
        if now >= self._leave_by or self._lending.outcome is None:
            return True
        answering = [g.member for g in self._guests if g.member is not None]
        return all(m.is_served for m in answering if now - m.heard <= self._timeout)


def _as_ours(error: Exception) -> Exception:
    if isinstance(error, HarnessError):
        return error
    return HarnessError(f"the lender of leases failed: {describe_error(error)}")
