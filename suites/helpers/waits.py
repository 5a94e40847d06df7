"""Shorter waits of worlds, in which tests see that a wait ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from disteval.world import attached, rank, world
from disteval.world.channel import link


def shorten_leaving(seconds: float) -> None:
    """Give ranks of this process's world so long to leave their group at the end."""
    world._LEAVE_SECONDS = rank._LEAVE_SECONDS = seconds


def shorten_silence(seconds: int) -> None:
    """Have this process take another host for out of reach after so many seconds."""
    link._SILENT_SECONDS = seconds


def shorten_start(seconds: float) -> None:
    """Have this process wait so long for a leader, or for ranks that never report."""
    world.START_SECONDS = attached.START_SECONDS = seconds


def shorten_stop(seconds: float) -> None:
    """Have this process, which a launcher has started, wait so long for a stopped leader."""
    attached.STOPPED_SECONDS = seconds


@contextmanager
def shorter_start(seconds: float) -> Iterator[None]:
    """Wait so long for ranks that never report, however many, while the block runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world, "START_SECONDS", seconds)
        patched.setattr(world, "_SECONDS_PER_RANK", 0.0)
        yield
