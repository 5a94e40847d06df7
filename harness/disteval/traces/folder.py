"""The folder of a trace: the worlds that one run records in it, and the clock of their times."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from disteval.arguments import check_output_folder, unwritable
from disteval.errors import UsageError
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


MERGED = "trace.json"
"""The file that ``disteval trace`` writes, with all rows."""

NAME = re.compile(r"world-(\d{1,9})-(?:rank-(\d{5,9})|leader)(?:-(\d{1,9}))?\.jsonl")
"""The names of the files that ranks and the leader write."""


def file_name(world: int, rank: int | None, attempt: int = 1) -> str:
    """Return the name of the file of a rank, or of the leader where ``rank`` is None."""
    row = "leader" if rank is None else f"rank-{rank:05d}"
    return f"world-{world}-{row}{f'-{attempt}' if attempt > 1 else ''}.jsonl"


class TraceFolder:
    """A folder in which one run records its trace; the worlds of the run share it.

    Args:
        path: The folder; it is made if it does not exist.
        option: The option or argument that named it, for the message.

    Raises:
        UsageError: It holds a trace already, or can't be written.
    """

    def __init__(self, path: str | Path, option: str = "trace") -> None:
        # Ranks may work in other folders.
        self.path = Path(path).absolute()
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{option} {self.path} is a file; give the name of a folder")
        check_output_folder(option, self.path)
        names = (file.name for file in self.path.glob("world-*.jsonl"))
        if found := sorted(name for name in names if NAME.fullmatch(name)):
            raise UsageError(
                f"{option} {self.path} holds the trace of an earlier run ({found[0]}); give "
                f"another folder, or remove it"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(option, self.path, error) from error
        self._run = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def new_world(self, title: str, world_size: int) -> Place:
        """Return the place of the next world, whose time begins now."""
        return Place(
            str(self.path), self._run, next(self._numbers), title, world_size,
            time.monotonic_ns(), own_clock(), own_wall(), {}, cap_for(world_size),
        )  # fmt: skip


Trace = str | Path | TraceFolder | None
"""A folder for a trace; None records none."""


def as_folder(trace: Trace, option: str = "trace") -> TraceFolder | None:
    """Return the folder of a trace; a path becomes a new one, see `TraceFolder`."""
    return TraceFolder(trace, option) if isinstance(trace, (str, Path)) else trace
