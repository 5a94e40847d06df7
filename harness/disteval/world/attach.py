"""Joining a worker group that somebody else has started, with ``mpirun`` or ``torchrun``.

Its ranks are on one host or on several.

Rank 0 leads and takes part (`disteval.world.World.lead`); the other ranks follow it until it
dismisses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from disteval.contract import BaseDistBackend
from disteval.host import exit_now, thread_variables
from disteval.world.bootstrap import Bootstrap
from disteval.world.environment import OuterWorld
from disteval.world.rank import serve
from disteval.world.rank_process import go_on_in_child
from disteval.world.world import START_SECONDS, World

STOPPED_SECONDS = 60.0
"""How long ranks wait for a rank 0 that a signal has stopped; its launcher would wait for ever."""


def follow(outer: OuterWorld, *, elastic: bool = False) -> int:
    """Serve as a rank of the worker group that rank 0 leads, until it dismisses this process.

    Args:
        outer: The worker group.
        elastic: Whether rank 0's world goes on when ranks are lost. This rank is then a child of
            this process, so that the launcher does not end the others when it is lost.

    Returns:
        The exit status with which the leader wants this process to end.

    Raises:
        UsageError: The ranks are on several hosts, and have no way to find each other.
        WorldError: Rank 0 did not appear in time.
    """
    bootstrap = Bootstrap(outer)
    if elastic:
        bootstrap.accept_losses()
    own = bootstrap.own_directory()
    directory = outer.control_directory() if own is None else own.path
    remove: Callable[[], None] = (lambda: None) if own is None else own.remove
    if elastic:
        go_on_in_child(directory, outer.rank, remove)
    try:
        place = bootstrap.find(START_SECONDS + outer.world_size)
        return serve(
            directory, outer.rank, patience=START_SECONDS, on_lost=remove, place=place,
            stopped=STOPPED_SECONDS,
        )  # fmt: skip
    finally:
        remove()


def release(world: World, exit_code: int) -> None:
    """Dismiss the ranks that `World.lead` leads; if they are lost, end this process now."""
    if world.is_open:
        world.close(exit_code)
    else:
        exit_now(exit_code)


def share_cores(outer: OuterWorld, threads: int | None = None) -> None:
    """Give this process that many computing threads; None stands for its share of the host's cores.

    Call it before a framework is imported.
    """
    os.environ.update(thread_variables(outer.ranks_on_host, threads))


def why_not_in(outer: OuterWorld, name: str, backend: type[BaseDistBackend]) -> str:
    """Return why a backend can't run in this worker group; an empty text when it can.

    Its ranks must be processes that its own launcher started, or any processes at all.
    """
    if backend.launcher in ("local", outer.launcher):
        return ""
    return f"{name}'s ranks are started by {backend.launcher!r}, and this job's by {outer.launcher}"
