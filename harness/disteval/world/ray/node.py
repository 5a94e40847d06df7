"""The code that runs on the nodes of a Ray cluster: ranks, and the tasks that look after them.

Ranks on the leader's own node use its control directory. Ranks on another node share a directory
there, in the folder of Ray's session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from disteval.world.channel.link import Address
from disteval.world.control_directory import opened
from disteval.world.rank_process import become_rank

_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Leader:
    """The description of the leader that each rank gets."""

    directory: Path  # the world's control directory, on the leader's node
    node: str  # that it runs on, by Ray's id
    address: Address
    folder: str  # that it runs in
    path: list[str]  # that it imports from


class RankActor:
    """An actor whose process is one rank of a world."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def serve(self, leader: Leader) -> int:
        """Carry out the orders of a leader, which may run on this node; return the exit status."""
        import ray

        sys.path.extend(entry for entry in leader.path if entry not in sys.path)
        if Path(leader.folder).is_dir():
            os.chdir(leader.folder)
        if ray.get_runtime_context().get_node_id() == leader.node:
            _end_with_node(None)
            return become_rank(leader.directory, self._rank)
        here = _create_directory_here(leader.directory.name)
        _end_with_node(here)
        remove = partial(shutil.rmtree, here, ignore_errors=True)  # nobody else on this node does
        try:
            return become_rank(here, self._rank, on_lost=remove, place=leader.address)
        finally:
            remove()


def clean_up_here(name: str) -> None:
    """Remove the directory of a world on this node."""
    shutil.rmtree(_directory_here(name), ignore_errors=True)


def kill_rank(pid: int) -> None:
    """Kill a rank of this node, if the process with that number is still a rank."""
    with contextlib.suppress(ProcessLookupError):
        if is_rank(pid):
            os.kill(pid, signal.SIGKILL)


def is_rank(pid: int) -> bool:
    """Return whether a process of this node is a rank; another may have its number by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::RankActor")
    except OSError:
        return False


def _end_with_node(directory: Path | None) -> None:
    """End this process soon after the raylet that has started it, because Ray may not end it.

    The directory is removed then, unless it is None.
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
    """Create the directory that the ranks of this node share, unless another rank has."""
    here = _directory_here(name)
    here.mkdir(mode=0o700, exist_ok=True)
    with opened(here):  # Ray lets every user write to where it lies
        return here


def _directory_here(name: str) -> Path:
    from ray._private.worker import _global_node

    return Path(_global_node.get_session_dir_path(), f"disteval-{name}")
