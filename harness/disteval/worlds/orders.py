"""Collecting what came of one order from every rank."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from selectors import BaseSelector
from typing import Any, cast

from disteval.errors import HarnessError
from disteval.worlds import control

OnProgress = Callable[[int, int, int], None]
"""Called by the leader with a rank, the samples it has done, and the samples of its shard."""

OnNote = Callable[[int, Any], None]
"""Called by the leader with a rank, and what it told."""

OnMessage = Callable[[int, Any], None]
"""Called by the leader with a rank, and what it sent that is no reply."""

# After the first failure the others get this long to come back, so that the report is whole.
_GRACE_SECONDS = 1.0


@dataclass
class Outcome:
    """What came of one order; ranks are lost in the order in which it was noticed."""

    world_size: int
    replies: dict[int, control.Reply] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a rank was lost or raised."""
        return bool(self.lost) or any(reply.trace for reply in self.replies.values())

    @property
    def in_step(self) -> bool:
        """Whether every rank came back, by returning or by raising."""
        return len(self.replies) == self.world_size and not self.lost

    @property
    def complete(self) -> bool:
        """Whether every rank returned."""
        return self.in_step and not self.failed

    def in_order(self) -> list[control.Reply]:
        """The replies by rank."""
        return [self.replies[rank] for rank in range(self.world_size)]

    def late(self) -> list[int]:
        """The ranks that neither came back nor were lost."""
        return [r for r in range(self.world_size) if r not in self.replies and r not in self.lost]

    def exceptions(self) -> dict[int, Exception]:
        """What each rank that raised raised, where it could travel."""
        found = {rank: _exception(reply) for rank, reply in self.replies.items()}
        return {rank: error for rank, error in found.items() if error is not None}


def collect(
    selector: BaseSelector,
    connections: Mapping[int, Connection],
    timeout: float,
    on_message: OnMessage,
    awaited: Sequence[int] | None = None,
) -> Outcome:
    """Wait for every rank's reply, until the deadline or shortly after the first failure.

    Where ranks are meant to fail, ``awaited`` names the others: they get all of the time.

    Args:
        selector: Watches the connections; each is registered with its rank. Linux's tells events
            in the order in which they happened, so the rank that was lost first is known.
        connections: The channel to each rank.
        timeout: Seconds without a reply, a progress message or a note until the deadline.
        on_message: Called with everything that is no reply.
        awaited: The ranks whose replies are waited for; None stands for all, and for patience of a
            moment only once one has failed.
    """
    outcome = Outcome(len(connections))
    deadline = time.monotonic() + timeout
    grace_given = awaited is not None
    wanted = set(connections if awaited is None else awaited)
    while wanted.intersection(outcome.late()) and (left := deadline - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            rank = key.data
            try:
                message = control.receive(connections[rank])
            except (EOFError, OSError) as error:
                selector.unregister(key.fileobj)
                if not isinstance(error, BlockingIOError):  # frozen within a message: it is late
                    outcome.lost.append(rank)
                continue
            if isinstance(message, control.Reply):
                outcome.replies[rank] = message
            else:
                on_message(rank, message)
                if isinstance(message, (control.Progress, control.Note)) and not outcome.failed:
                    deadline = time.monotonic() + timeout
        if outcome.failed and not grace_given:
            grace_given = True
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    return outcome


def _exception(reply: control.Reply) -> Exception | None:
    if reply.error is None:
        return None
    try:
        return cast(Exception, pickle.loads(reply.error))
    except Exception as error:  # its class may rebuild itself badly; its traceback is in the report
        return HarnessError(f"an exception that can't be rebuilt here ({error})")
