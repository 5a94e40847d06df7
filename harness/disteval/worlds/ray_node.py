"""What happens on the nodes of a Ray cluster: ranks, and those who look after them.

Ranks on the leader's own node use its control directory. Those on another node share one there,
among what Ray keeps of that node's session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from disteval.errors import WorldError
from disteval.worlds import control
from disteval.worlds.postmortem import Fate, examine
from disteval.worlds.process import become_rank

_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Leader:
    """What a rank has to know of its leader.

    Attributes:
        directory: The world's control directory, on the leader's node.
        address: Where it listens, and its key.
        folder: The folder that it runs in.
        path: Where it imports from.
    """

    directory: Path
    address: str
    folder: str
    path: list[str]


class RankActor:
    """A process of Ray that is one rank of a world.

    Args:
        rank: Which rank it is.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def pid(self) -> int:
        """The number of the process on its node."""
        return os.getpid()

    def serve(self, leader: Leader, nearby: bool) -> int:
        """Follow the leader's orders until it dismisses this rank.

        Args:
            leader: What there is to know of it.
            nearby: Whether it runs on this node.

        Returns:
            The exit status.
        """
        sys.path.extend(entry for entry in leader.path if entry not in sys.path)
        if Path(leader.folder).is_dir():
            os.chdir(leader.folder)
        if nearby:
            _end_with_node(None)
            return become_rank(leader.directory, self._rank)
        here = _create_directory_here(leader.directory.name)
        _end_with_node(here)
        try:
            control.leave_address(here, leader.address)
            return become_rank(here, self._rank)
        finally:
            shutil.rmtree(here, ignore_errors=True)


def examine_here(name: str, fates: Sequence[Fate]) -> Sequence[Fate]:
    """Find out what the ranks of this node are doing.

    Args:
        name: What the world's directory is called here.
        fates: What is known of them.

    Returns:
        What is known now.
    """
    examine(_directory_here(name), fates)
    return fates


def clean_up_here(name: str, pids: Sequence[int]) -> None:
    """Leave nothing of a world on this node: no process, no directory."""
    for pid in pids:
        kill_rank(pid)
    shutil.rmtree(_directory_here(name), ignore_errors=True)


def kill_rank(pid: int) -> None:
    """Kill a rank of this node, if the process of that number still is one."""
    with contextlib.suppress(ProcessLookupError):
        if is_rank(pid):
            os.kill(pid, signal.SIGKILL)


def is_rank(pid: int) -> bool:
    """Whether a process of this node is a rank; its number may be another's by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::RankActor")
    except OSError:
        return False


def _end_with_node(directory: Path | None) -> None:
    """Let this process end soon after the raylet that has started it; Ray may let it go on.

    Args:
        directory: What to remove then; None where the leader does it.
    """
    raylet = os.getppid()

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(_LOOK_SECONDS)
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _create_directory_here(name: str) -> Path:
    """Create what the ranks of this node share, private to this user; the first of them does."""
    here = _directory_here(name)
    here.mkdir(mode=0o700, exist_ok=True)
    # Ray lets every user write to where it lies.
    if here.lstat().st_uid != os.getuid():
        raise WorldError(f"{here} belongs to another user; refusing to leave a key there")
    return here


def _directory_here(name: str) -> Path:
    from ray._private.worker import _global_node

    return Path(_global_node.get_session_dir_path()) / name
