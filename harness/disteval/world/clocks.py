"""The offsets of other hosts' clocks, as the leader measures them when a trace is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable

from disteval.traces.place import Offset, own_clock

_ROUNDS = 8

Read = Callable[[], tuple[list[tuple[str, int]], dict[int, int]]]
"""Returns each rank's clock and its time, by rank, and when the leader received them."""


def compare_clocks(read: Read) -> dict[int, Offset]:
    """Return the offsets of the ranks whose clocks are not the leader's own.

    By Cristian's method (Distributed Computing 3, 1989): a rank has read its clock somewhere
    between the order and the reply, so its time is that of the middle, and wrong by at most half
    of the round trip. The shortest of several round trips is taken.
    """
    found: dict[int, Offset] = {}
    for _ in range(_ROUNDS):
        sent = time.monotonic_ns()
        replies, arrived = read()
        for rank, (clock, theirs) in enumerate(replies):
            if clock == own_clock():
                continue
            error = (arrived[rank] - sent) // 2
            if rank not in found or error < found[rank].error:
                found[rank] = Offset(sent + error - theirs, error, "round trips")
        if not found:  # one machine has one clock
            break
    return found
