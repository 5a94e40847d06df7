"""The place of a trace: its folder, the run that it belongs to, and the clock of its times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from disteval.host import this_machine

CAP = 200_000
"""The most events that one rank records."""

_CAP_OF_ALL = 1_600_000  # events of all ranks of a world, so that many ranks fill no disk


class Offset(NamedTuple):
    """What is added to a clock so that it shows the leader's time, and how far it may be wrong."""

    nanoseconds: int
    error: int
    how: str


class Place(NamedTuple):
    """What a rank needs to know to record a trace; the leader sends it with its orders.

    Attributes:
        folder: The folder of the files.
        run: An identity of the run; files of another one are refused.
        world: The number of the world in the run, from 1 up.
        title: What the world is, in a few words.
        world_size: The number of its ranks.
        begin: The leader's clock when the world began, which is time 0 of the trace.
        clock: An identity of the leader's clock.
        wall: The leader's wall clock minus its clock.
        offsets: The offsets of ranks on other hosts, as far as they were measured.
        cap: The most events that a rank records.
    """

    folder: str
    run: str = ""
    world: int = 1
    title: str = ""
    world_size: int = 1
    begin: int = 0
    clock: str = ""
    wall: int = 0
    offsets: Mapping[int, Offset] = {}
    cap: int = CAP

    def offset_of(self, rank: int | None) -> Offset:
        """Return the offset of this process's clock, where this process is that rank."""
        if self.clock == own_clock():
            return Offset(0, 0, "the same clock")
        if rank is not None and rank in self.offsets:
            return self.offsets[rank]
        # Clocks of hosts that nobody has compared: their wall clocks agree as well as NTP keeps
        # them, which is not known here.
        return Offset(own_wall() - self.wall, -1, "wall clocks")


def own_clock() -> str:
    """Return an identity of the clock of `time.monotonic_ns`, equal where times can be compared.

    All processes of one Linux machine share it, unless they are in different time namespaces.
    """
    return this_machine(["time"])


def own_wall() -> int:
    """Return the wall clock minus the clock of `time.monotonic_ns`, in nanoseconds."""
    return time.time_ns() - time.monotonic_ns()


def category_of(order: str) -> str:
    """Return the category of an order: ``order`` for what a user runs, ``start`` for the others.

    Those are to import a backend, and to join its group or leave it.
    """
    return "order" if order.startswith("run ") else "start"


def cap_for(world_size: int) -> int:
    """Return how many events each rank of a world records at most."""
    return min(CAP, max(1_000, _CAP_OF_ALL // world_size))
