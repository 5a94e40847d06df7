"""What runs below the process that does a run, and which of it is leader, launcher or rank."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "prterun", "prted", "orted"}
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Process:
    """One process: its role is ``leader``, ``launcher``, ``rank`` or ``helper``."""

    pid: int
    state: str
    words: tuple[str, ...]
    role: str
    rank: int = -1

    def __str__(self) -> str:
        words = " ".join(self.words)
        return f"{self.pid} {self.state} {self.role} {self.rank}: {words[:150]}"


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent has ended."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> dict[int, int]:
    """Return the status of each child that has ended since, as ``subprocess`` gives it."""
    ended = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


class Tree:
    """The processes below this one; the root is the command."""

    def __init__(self, root: int, outer: bool) -> None:
        self._root, self._outer = root, outer
        self._known: dict[int, tuple[tuple[str, ...], dict[str, str]]] = {}

    def running(self) -> list[Process]:
        """Return the processes that exist and are no zombies, oldest first."""
        stats = {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and (stat := _stat(path)):
                stats[int(path.name)] = stat
        me, found = os.getpid(), []
        for pid, (state, _) in sorted(stats.items()):
            if state != "Z" and _is_below(pid, me, stats):
                found.append(self._process(pid, state))
        return found

    def _process(self, pid: int, state: str) -> Process:
        words, variables = self._known.get(pid, ((), {}))
        if not words or "RANK" not in "".join(variables):
            # A fork becomes what it executes a moment later.
            words, variables = _read(pid)
            self._known[pid] = words, variables
        if "disteval.worlds.fork_server" in " ".join(words[:4]):  # a server
            return Process(pid, state, words, "helper")
        return Process(pid, state, words, *self._role(pid, words, variables))

    def _role(self, pid: int, words: tuple[str, ...], variables: dict[str, str]) -> tuple[str, int]:
        names = {Path(word).name for word in words[:2]}
        text = " ".join(words[:4])
        rank = next((int(variables[name]) for name in _RANKS if name in variables), -1)
        if names & _LAUNCHERS or "torch.distributed.run" in words:
            return "launcher", -1
        if "disteval.worlds.process" in text:
            if rank < 0 and words[-1].isdigit():
                rank = int(words[-1])
            return "rank", rank
        if pid == self._root:
            return "leader", -1
        if self._outer and rank >= 0 and "disteval" in text:
            return ("leader" if rank == 0 else "rank"), rank
        return "helper", -1


def _stat(path: Path) -> tuple[str, int] | None:
    try:
        state, parent, *_ = (path / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return state, int(parent)


def _is_below(pid: int, ancestor: int, stats: dict[int, tuple[str, int]]) -> bool:
    while pid in stats:
        pid = stats[pid][1]
        if pid == ancestor:
            return True
    return False


def _read(pid: int) -> tuple[tuple[str, ...], dict[str, str]]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return (), {}
    variables = dict(pair.split("=", 1) for pair in pairs.split("\0") if "=" in pair)
    return tuple(words.rstrip("\0").split("\0")), {
        name: value for name, value in variables.items() if name in _RANKS and value.isdigit()
    }
