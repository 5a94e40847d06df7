"""The outcome of one order on every rank."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

import cloudpickle

from disteval.errors import HarnessError
from disteval.world.channel.messages import Frame, Reply, unpacked


@dataclass
class Outcome:
    """The replies to one order, and the lost ranks in the order in which they were noticed.

    ``unreachable`` says of a lost rank how the network to its host failed; nothing if it did not.
    ``arrived`` has the time of `time.monotonic_ns` at which each reply was received.
    """

    world_size: int
    replies: dict[int, Reply] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    unreachable: dict[int, str] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether a rank was lost or raised."""
        return bool(self.lost) or any(reply.trace for reply in self.replies.values())

    @property
    def in_step(self) -> bool:
        """Whether every rank replied, with a value or with an exception."""
        return len(self.replies) == self.world_size and not self.lost

    @property
    def complete(self) -> bool:
        """Whether every rank returned a value."""
        return self.in_step and not self.failed

    def values(self) -> list[Any]:
        """Return the value of each rank, in rank order, once the outcome is `complete`."""
        replies = [self.replies[rank].value or b"" for rank in range(self.world_size)]
        return [
            unpacked(value, f"what rank {rank} returned", in_step=True)
            for rank, value in enumerate(replies)
        ]

    def late(self) -> list[int]:
        """Return the ranks that neither replied nor were lost."""
        return [r for r in range(self.world_size) if r not in self.replies and r not in self.lost]

    def exceptions(self) -> dict[int, Exception]:
        """Return the exceptions that ranks raised, as far as they could be pickled."""
        return {
            rank: _load_exception(reply.error)
            for rank, reply in self.replies.items()
            if reply.error is not None
        }


def failed(error: Exception, since: TracebackType | None) -> Reply:
    """Return the reply of a rank that raised an exception, from a call in its traceback on."""
    trace = "".join(traceback.format_exception(type(error), error, since))
    calls = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(since)]
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    # A SyntaxError begins with its place.
    begin = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), 0)
    try:
        data = bytes(cloudpickle.dumps(error))
    except Exception:  # an exception may hold anything; its traceback is sent as text all the same
        data = None
    return Reply(None, data, trace, "\n".join(lines[begin:]), calls[::-1])


def _load_exception(data: bytes) -> Exception:
    try:
        return cast(Exception, pickle.loads(data))
    except Exception as error:  # such a class can't be unpickled; its traceback is in the report
        return HarnessError(f"an exception that can't be rebuilt here ({error})")
