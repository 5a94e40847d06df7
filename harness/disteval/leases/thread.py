"""A lender in a thread of one of its ranks, or of a process that only lends."""

from __future__ import annotations

import logging
import math
import threading
import time
from multiprocessing import Pipe

from disteval.errors import HarnessError, describe_error
from disteval.leases.lender import Lender
from disteval.world.channel.leader import Channel
from disteval.world.channel.link import Link

_log = logging.getLogger("disteval.leases")
_TICK_SECONDS = 0.25
_LAST_TICK_SECONDS = 0.02  # while ranks are waited for that have not got the result


class LenderThread:
    """Leads ranks that borrow leases, until all that answer have the result.

    Args:
        lender: What lends; it is closed at the end.
        channel: The connections to the ranks; they are closed at the end.
        patience: For how many seconds ranks are waited for that do not read the result.

    Attributes:
        link: The other end of a connection to it, for a rank of this process.
    """

    def __init__(self, lender: Lender, channel: Channel, patience: float) -> None:
        self._lender, self._channel, self._patience = lender, channel, patience
        ours, theirs = Pipe()
        self.link = Link(theirs)
        channel.take_in([ours])
        self._ended = threading.Event()
        self._leave_by = math.inf
        self._thread = threading.Thread(target=self._run, name="disteval-lender", daemon=True)
        self._thread.start()

    def __enter__(self) -> LenderThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The error may be the outcome, for which the other ranks wait; an interrupt never is.
        self.close(at_once=kind is not None and not issubclass(kind, Exception))

    def wait(self, seconds: float) -> bool:
        """Wait so long for the end of the evaluation; return whether it has ended."""
        return self._ended.wait(seconds)

    def close(self, *, at_once: bool = False) -> None:
        """End the thread, once every rank that answers has the result, or at once."""
        self._leave_by = 0.0 if at_once else time.monotonic() + self._patience
        self.link.close()  # which wakes it
        self._thread.join()

    def _run(self) -> None:
        lender, channel = self._lender, self._channel
        try:
            while not self._may_leave(time.monotonic()):
                seconds = _TICK_SECONDS if self._leave_by == math.inf else _LAST_TICK_SECONDS
                heard = [*channel.poll(seconds)]
                for message, ranks in lender.turn(heard, time.monotonic()):
                    channel.send(message, *ranks)
                if lender.outcome is not None:
                    self._ended.set()
        except Exception as error:  # ranks and the leader wait for this thread
            _log.exception("the lender of leases failed")
            what = f"the lender of leases failed: {describe_error(error)}"
            lender.fail(error if isinstance(error, HarnessError) else HarnessError(what))
            self._ended.set()
        finally:
            channel.close()
            lender.close()

    def _may_leave(self, now: float) -> bool:
        lender = self._lender
        if self._leave_by == math.inf:
            return False
        if now >= self._leave_by or lender.outcome is None:
            return True
        return all(map(self._channel.has_delivered, lender.answering(now)))
