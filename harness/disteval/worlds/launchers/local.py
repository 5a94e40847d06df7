"""Ranks that are child processes of the leader."""

from __future__ import annotations

import subprocess
from pathlib import Path

from disteval.worlds.launchers.base import ProcessLauncher, rank_command
from disteval.worlds.postmortem import exit_text

_STATUS_SECONDS = 1.0


class LocalLauncher(ProcessLauncher):
    """Starts every rank as a child process of the leader."""

    name = "local"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        """Return one command for each rank."""
        return [[*rank_command(directory), str(rank)] for rank in range(world_size)]

    def how_lost(self, rank: int) -> str:
        """Return how the rank's process ended; its connection may close a moment earlier."""
        try:
            return exit_text(self._processes[rank].wait(_STATUS_SECONDS))
        except subprocess.TimeoutExpired:
            return exit_text(None)
