"""The entry point of a process that a launcher started: it becomes a rank, and serves."""

from __future__ import annotations

import faulthandler
import io
import os
import sys
from pathlib import Path

from disteval.worlds.environment import detect_outer_world
from disteval.worlds.rank import serve
from disteval.worlds.rank_files import rank_file


def _redirect_output(path: Path) -> None:
    with path.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if isinstance(sys.stdout, io.TextIOWrapper):  # what Ray puts there does not buffer
        sys.stdout.reconfigure(line_buffering=True)


def become_rank(directory: Path, rank: int) -> int:
    """Serve as one rank of a world until the leader dismisses it; return the exit status."""
    _redirect_output(rank_file(directory, rank, "out"))
    faulthandler.enable()
    return serve(directory, rank)


def main() -> int:
    """Serve as one rank of a world; the arguments are its control directory and the rank."""
    directory = Path(sys.argv[1])
    # Under mpirun every rank has the same command, and its number is in the environment.
    outer = detect_outer_world() if len(sys.argv) == 2 else None
    rank = int(sys.argv[2]) if outer is None else outer.rank
    return become_rank(directory, rank)
