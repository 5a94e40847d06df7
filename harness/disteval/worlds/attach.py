"""Worlds whose processes somebody else has started, with ``mpirun`` or ``torchrun``.

Rank 0 leads and takes part; the others serve it until it lets them go.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from disteval.contract import BaseDistBackend
from disteval.worlds.cores import thread_variables
from disteval.worlds.crew import START_SECONDS, Crew
from disteval.worlds.outer import OuterWorld
from disteval.worlds.postmortem import exit_text
from disteval.worlds.rank import serve
from disteval.worlds.thread_launcher import ThreadsLauncher


class OuterLauncher(ThreadsLauncher):
    """Starts nothing: the ranks are there. This process leads, and is rank 0 in a thread.

    Args:
        outer: The world that this process leads.
    """

    name = "outer"
    attached: ClassVar[bool] = True

    def __init__(self, outer: OuterWorld) -> None:
        super().__init__()
        self._outer = outer

    def directory(self) -> Path:
        """Create the control directory where the other ranks look for it."""
        return self._outer.create_control_directory()

    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Let this process take part; the other ranks come by themselves."""
        return super().start(directory, 1, environment)

    def how_lost(self, rank: int) -> str:
        """Rank 0 is the thread; the others are processes of which nothing is known here."""
        return super().how_lost(rank) if rank == 0 else exit_text(None)


def lead(outer: OuterWorld, seconds: float = START_SECONDS) -> Crew:
    """Lead the job that this process is rank 0 of; the others must `follow`.

    Args:
        outer: The world that this process is in.
        seconds: How long the others may take to report.

    Raises:
        WorldError: Not every rank reported in time.
    """
    return Crew(OuterLauncher(outer), outer.world_size, {}, seconds)


def follow(outer: OuterWorld) -> int:
    """Serve as a rank of the job that rank 0 leads, until it lets this process go.

    Args:
        outer: The world that this process is in.

    Returns:
        The exit status with which the leader wants this process to end.

    Raises:
        WorldError: Rank 0 did not appear in time.
    """
    return serve(outer.control_directory(), outer.rank)


def release(crew: Crew, exit_code: int) -> None:
    """Let the ranks of the job end; where they are lost, this process ends here and now.

    Args:
        crew: What `lead` returned.
        exit_code: The exit status of every rank.
    """
    if crew.is_open:
        crew.dismiss(exit_code)
    else:
        exit_now(exit_code)


def exit_now(exit_code: int) -> None:
    """End this process without the library's farewell.

    MPI would wait at exit for ranks that are lost or hang; their launcher ends them after this.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it is closed, or whoever read it is gone
            stream.flush()
    os._exit(exit_code)


def share_cores(outer: OuterWorld, threads: int | None = None) -> None:
    """Give this process its share of the host's cores; to be done before a framework is imported.

    Args:
        outer: The world that this process is in.
        threads: Computing threads a rank; None shares the cores evenly.
    """
    os.environ.update(thread_variables(outer.ranks_on_host, threads))


def why_not_in(outer: OuterWorld, name: str, backend: type[BaseDistBackend]) -> str:
    """Say why a backend can't run in this job; nothing when it can.

    Its ranks must be processes that its own launcher started, or any processes at all.
    """
    if backend.launcher in ("local", outer.launcher):
        return ""
    return f"{name}'s ranks are started by {backend.launcher!r}, and this job's by {outer.launcher}"
